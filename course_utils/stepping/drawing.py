"""A moment of a loop as HTML: the loop with its current line, weights, gradients, the ledger.

`page.html` has its styles. Its colours (of Okabe and Ito) are readable on white and on black;
nothing is said by a colour alone.
"""

from html import escape

from course_utils.ask.display import with_code
from course_utils.stepping.recorder import Ledger, Moment, Recording
from course_utils.stepping.words import sentence


def frames(recording: Recording) -> list[list[str]]:
    """Each moment: its sentence, and pieces of HTML to be joined."""
    made = []
    for index, now in enumerate(recording.moments):
        state = values(recording.moments[max(index - 1, 0)], now)
        panel = ["<div>", code(recording.lines, now.line), "</div><div>", state, ledger(now), "</div>"]
        made.append([with_code(sentence(recording, index)), *panel])
    return made


def code(lines: list[str], current: int) -> str:
    """The loop's lines; the current one is lit and has a pointer."""
    rows = []
    for line, text in enumerate(lines, start=1):
        mark, pointer = (' aria-current="step"', "▶") if line == current else ("", " ")
        rows.append(f"<div{mark}>{pointer} {escape(text, quote=False)}</div>")
    return f'<div class="code" role="group" aria-label="The loop">{"".join(rows)}</div>'


def values(before: Moment, now: Moment) -> str:
    """Weights and `.grad`: a row for each parameter."""
    rows = "<tr><th></th><th>value</th><th>.grad</th></tr>"
    for name in now.weights:
        pairs = (before.weights[name], now.weights[name]), (before.grads[name], now.grads[name])
        cells = "".join(f"<td{' class=changed' * (was != is_now)}>{is_now}</td>" for was, is_now in pairs)
        rows += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    return f'<p>After this line</p><div class="values"><table>{rows}</table></div>'


def ledger(now: Moment) -> str:
    """A block for each micro-batch: in `.grad` now, thrown away, or in an update."""
    html, again = "<p>Ledger: which micro-batches</p>", False
    for lane, book in now.ledgers.items() or [("", Ledger())]:
        rows = [("in .grad now", _blocks(book.held, book.used))]
        if book.lost:
            rows.append(("thrown away", _blocks(book.lost, set(book.lost), "lost")))
        seen: set[int] = set()
        for number, update in enumerate(book.updates, start=1):
            rows.append((f"◆ update {number}", _blocks(update, seen) or "nothing"))
            again = again or not seen.isdisjoint(update)
            seen.update(update)
        body = "".join(f"<tr><td>{head}</td><td>{content}</td></tr>" for head, content in rows)
        html += f'{f"<b>{escape(lane)}</b>" * (len(now.ledgers) > 1)}<table class="ledger">{body}</table>'
    return html + "<p>A dashed frame: an earlier update has used this micro-batch already.</p>" * again


def _blocks(numbers: tuple[int, ...], marked: set[int], mark: str = "used") -> str:
    return " ".join(f'<span class="{mark if one in marked else "fresh"}">{one}</span>' for one in numbers)


def table_of(recording: Recording) -> list[list[str]]:
    """A recorded loop as a table of text: its head, and a row for each moment but the losses."""
    rows = [["line", "what happens", "micro-batches in .grad"]]
    for index, moment in enumerate(recording.moments):
        if moment.kind != "loss":
            text = f"`{recording.lines[moment.line - 1].strip()}`" if moment.line > 1 else ""
            held = "; ".join(", ".join(map(str, book.held)) or "–" for book in moment.ledgers.values()) or "–"
            rows.append([text, sentence(recording, index), held])
    return rows
