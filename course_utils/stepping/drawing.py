"""A moment of a record as HTML: the loop with its current line, weights and gradients, and the ledger below.

`page.html` has its styles. Its colours (of Okabe and Ito) are readable on white and on black; nothing is said by a
colour alone.
"""

from html import escape

from course_utils.recording.stepping import Frame, Ledger, Steps
from course_utils.stepping.words import sentence

KEYS = {"start", "backward", "zero", "change", "step", "skipped", "error", "cut", "end"}  # the rows of the table
_SHOWN_FRAMES = 16


def panel(steps: Steps, place: int) -> list[str]:
    """A moment of a record: pieces of HTML to be joined. Many moments share a piece."""
    frame = steps.frames[place]
    loop = [code(steps, frame), variables(frame)]
    return ["<div>", *loop, "</div><div>", state(steps, place), f"{ledger(steps, frame)}</div>"]


def code(steps: Steps, frame: Frame) -> str:
    """The loop's lines; the one that has just run is lit and has a pointer."""
    rows = []
    for line, text in enumerate(steps.loop.lines, start=1):
        current, pointer = (' aria-current="step"', "▶") if line == frame.line else ("", " ")
        rows.append(f"<div{current}>{pointer} {escape(text, quote=False)}</div>")
    return f'<div class="code" role="group" aria-label="The loop">{"".join(rows)}</div>'


def variables(frame: Frame) -> str:
    """The loop's own variables, in two lines; the rest can be scrolled to."""
    text = " · ".join(f"{name} = {text}" for name, text in frame.variables.items())
    return f'<div class="variables">{escape(text, quote=False)}</div>'


def state(steps: Steps, place: int) -> str:
    """Weights, `.grad` and the optimizer's state: a row for each parameter."""
    now, before = steps.frames[place], steps.frames[max(place - 1, 0)]
    keys = dict.fromkeys(key for frame in steps.frames for some in frame.state.values() for key in some)
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("", "value", ".grad", *keys))
    rows = f"<tr>{heads}</tr>"
    for name in now.weights:
        old, new = (
            [frame.weights[name], frame.grads[name], *(frame.state.get(name, {}).get(key) for key in keys)]
            for frame in (before, now)
        )
        changed = ("" if value == was else ' class="changed"' for was, value in zip(old, new, strict=True))
        cells = "".join(f"<td{mark}>{value}</td>" for mark, value in zip(changed, new, strict=True))
        rows += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    optimizers = "; ".join(map(escape, now.optimizers)) or "no optimizer"
    return f'<p>After this line</p><div class="state"><table>{rows}</table></div><p>{optimizers}</p>'


def ledger(steps: Steps, frame: Frame) -> str:
    """A block for each micro-batch: those in `.grad` now, those that were thrown away, and those of each update."""
    last = steps.frames[-1].ledgers
    html, again = "<p>Ledger: which micro-batches</p>", False
    for lane, whole in last.items() or [("", Ledger())]:
        book = frame.ledgers.get(lane, Ledger())
        rows = {"in .grad now": _blocks(book.held, {one for update in book.updates for one in update})}
        if whole.lost:
            rows["thrown away"] = _blocks(book.lost, set(book.lost), "lost")
        seen: set[int] = set()
        for count, update in enumerate(whole.updates, start=1):
            made = count <= len(book.updates)
            rows[f"◆ update {count}"] = (_blocks(update, seen) or "nothing") if made else ""
            again = again or not seen.isdisjoint(update)
            seen.update(update)
        body = "".join(f"<tr><td>{head}</td><td>{content}</td></tr>" for head, content in rows.items())
        title = f"<b>{escape(lane)}</b>" if len(last) > 1 else ""
        html += f'{title}<table class="ledger">{body}</table>'
    note = "<p>A dashed frame: an earlier update has used this micro-batch already.</p>"
    return html + note * again


def _blocks(numbers: tuple[int, ...], marked: set[int], mark: str = "used") -> str:
    return " ".join(f'<span class="{mark if one in marked else "fresh"}">{one}</span>' for one in numbers)


# As a table: the frames in which gradients change, one below the other


def key_frames(steps: Steps) -> list[int]:
    """The places of the frames in which something happens to gradients or weights, at most 16; the last is the end."""
    keys = [place for place, frame in enumerate(steps.frames) if frame.kind in KEYS]
    return keys if len(keys) <= _SHOWN_FRAMES else keys[: _SHOWN_FRAMES - 1] + keys[-1:]


def table_of(steps: Steps) -> list[list[str]]:
    """A record as a table of text: its head, and a row for each key frame."""
    rows = [["line", "what happens", "micro-batches in .grad"]]
    for place in key_frames(steps):
        frame = steps.frames[place]
        text = steps.loop.lines[frame.line - 1].strip() if frame.line > 1 else ""
        held = "; ".join(", ".join(map(str, book.held)) or "–" for book in frame.ledgers.values()) or "–"
        rows.append([f"`{text}`" if text else "", sentence(steps, place), held])
    return rows
