"""A moment of a loop as HTML: the loop with its current line, weights, gradients, the ledger.

`page.html` has its styles. Its colours (of Okabe and Ito) are readable on white and on black;
nothing is said by a colour alone.
"""

from collections.abc import Collection
from html import escape
from itertools import pairwise

from course_utils.ask.display import with_code
from course_utils.stepping.recorder import Moment
from course_utils.stepping.words import sentence


def frames(lines: list[str], moments: list[Moment]) -> list[list[str]]:
    """Each moment: its sentence, and pieces of HTML to be joined."""
    made = []
    for before, now in pairwise([moments[0], *moments]):
        panel = ["<div>", code(lines, now.line), "</div><div>", values(before, now), ledger(now), "</div>"]
        made.append([with_code(sentence(before, now)), *panel])
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
    for name, pair in now.values.items():
        both = zip(before.values[name], pair, strict=True)
        cells = "".join(f"<td{' class=changed' * (was != is_now)}>{is_now}</td>" for was, is_now in both)
        rows += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    return f'<p>After this line</p><div class="values"><table>{rows}</table></div>'


def ledger(now: Moment) -> str:
    """A block for each micro-batch: in `.grad` now, thrown away, or in an update."""
    html = "<p>Ledger: which micro-batches</p>"
    for lane, book in now.ledgers.items():
        rows = [("in .grad now", _blocks(book.held, book.used))]
        if book.lost:
            rows.append(("thrown away", _blocks(book.lost, book.lost, "lost")))
        seen: set[int] = set()
        for number, update in enumerate(book.updates, start=1):
            rows.append((f"◆ update {number}", _blocks(update, seen) or "nothing"))
            seen.update(update)
        body = "".join(f"<tr><td>{head}</td><td>{content}</td></tr>" for head, content in rows)
        html += f'{f"<b>{escape(lane)}</b>" * (len(now.ledgers) > 1)}<table class="ledger">{body}</table>'
    return html + "<p>A dashed frame: an update has used this micro-batch before.</p>" * ('class="used"' in html)


def _blocks(numbers: Collection[int], marked: Collection[int], mark: str = "used") -> str:
    return " ".join(f'<span class="{mark if one in marked else "fresh"}">{one}</span>' for one in numbers)


def table_of(lines: list[str], moments: list[Moment]) -> list[list[str]]:
    """A recorded loop as a table of text: its head, and a row for each moment but the losses."""
    rows = [["line", "what happens", "micro-batches in .grad"]]
    for before, now in pairwise([moments[0], *moments]):
        if now.kind != "loss":
            text = f"`{lines[now.line - 1].strip()}`" if now.line > 1 else ""
            held = "; ".join(", ".join(map(str, book.held)) or "–" for book in now.ledgers.values()) or "–"
            rows.append([text, sentence(before, now), held])
    return rows
