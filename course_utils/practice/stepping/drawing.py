"""A moment of a record as HTML: the loop with its current line, weights and gradients, and the ledger below.

All styles are inline. The colours (of Okabe and Ito) are readable on white and on black; nothing is said by a colour
alone.
"""

from html import escape

from course_utils.practice.stepping.words import sentence
from course_utils.recording.stepping import Frame, Ledger, Steps, Values

ORANGE, BLUE, RED = "#E69F00", "#0072B2", "#D55E00"

_MONO = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:13px"
_LINE = "1px solid rgba(128,128,128,0.45)"
_CELL = f"padding:1px 6px;min-width:4em;text-align:right;border-bottom:{_LINE}"
_FAINT = "opacity:0.7"
_ROW = "padding:1px 0;height:1.75em;vertical-align:middle"
_BLOCK = "display:inline-block;min-width:1.5em;box-sizing:border-box;text-align:center;padding:0 2px;line-height:1.4"

KEYS = {"start", "backward", "zero", "change", "step", "skipped", "error", "cut", "end"}  # the rows of the table
_SHOWN_FRAMES = 16


def panel(steps: Steps, place: int) -> list[str]:
    """A moment of a record: pieces of HTML to be joined. Many moments share a piece."""
    frame = steps.frames[place]
    return [
        '<div style="display:flex;flex-wrap:wrap;gap:0.8em 2.4em;font-size:13px;line-height:1.5">',
        '<div style="flex:0 1 auto;min-width:0">',
        code(steps, frame),
        variables(frame),
        '</div><div style="flex:1 1 16em;min-width:0">',
        state(steps, place),
        f'<div style="height:0.9em"></div>{ledger(steps, frame)}</div></div>',
    ]


def code(steps: Steps, frame: Frame) -> str:
    """The loop's lines; the one that has just run is lit and has a pointer."""
    rows = []
    for line, text in enumerate(steps.loop.lines, start=1):
        lit = line == frame.line
        style = "white-space:pre;padding:0 0.6em 0 0.3em;line-height:1.55;border-left:4px solid "
        style += f"{ORANGE};background:rgba(230,159,0,0.22)" if lit else "transparent"
        current = ' aria-current="step"' if lit else ""
        rows.append(f'<div style="{style}"{current}>{"▶" if lit else " "} {escape(text, quote=False)}</div>')
    return f'<div style="{_MONO};overflow-x:auto" role="group" aria-label="The loop">{"".join(rows)}</div>'


def variables(frame: Frame) -> str:
    """The loop's own variables, in two lines; the rest can be scrolled to."""
    text = " · ".join(f"{name} = {text}" for name, text in frame.variables.items())
    style = f"{_MONO};{_FAINT};height:3.2em;overflow:auto;margin:0.3em 0 0 1.4em;width:0;min-width:90%"
    return f'<div style="{style}">{escape(text, quote=False)}</div>'


def state(steps: Steps, place: int) -> str:
    """Weights, `.grad` and the optimizer's state: a row for each parameter."""
    now, before = steps.frames[place], steps.frames[max(place - 1, 0)]
    keys = dict.fromkeys(key for frame in steps.frames for some in frame.state.values() for key in some)
    table = [[_cell("", head=True), *(_cell(name, head=True) for name in ("value", ".grad", *keys))]]
    for name, value in now.weights.items():
        cells = [_cell(name, head=True)]
        cells += [
            _cell(value, value != before.weights[name]),
            _cell(now.grads[name], now.grads[name] != before.grads[name]),
        ]
        was, held = (frame.state.get(name, {}) for frame in (before, now))
        cells += [_cell(held.get(key), held.get(key) != was.get(key)) for key in keys]
        table.append(cells)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in table)
    optimizers = "; ".join(map(escape, now.optimizers)) or "no optimizer"
    html = f'<div style="overflow-x:auto"><table style="border-collapse:collapse;{_MONO}">{body}</table></div>'
    return _small("After this line") + html + _small(optimizers)


def _cell(value: Values | str | None, changed: bool = False, head: bool = False) -> str:
    mark = f";font-weight:bold;box-shadow:inset 0 -3px 0 {ORANGE}" if changed else ""
    tag, look = ("th", f";font-weight:normal;{_FAINT}") if head else ("td", mark)
    return f'<{tag} style="{_CELL}{look}">{escape(str(value))}</{tag}>'


def _small(text: str) -> str:
    return f'<div style="font-size:12px;{_FAINT};margin:0.2em 0">{text}</div>'


# The ledger


def ledger(steps: Steps, frame: Frame) -> str:
    """A block for each micro-batch: those in `.grad` now, those that were thrown away, and those of each update."""
    last = steps.frames[-1].ledgers
    tables, again = [], False
    for lane, whole in last.items() or [("", Ledger())]:
        book = frame.ledgers.get(lane, Ledger())
        rows = {"in .grad now": _blocks(book.held, {one for update in book.updates for one in update})}
        if whole.lost:
            rows["thrown away"] = _blocks(book.lost, set(), lost=True)
        seen: set[int] = set()
        for count, update in enumerate(whole.updates, start=1):
            made = count <= len(book.updates)
            rows[f"▲ update {count}"] = (_blocks(update, seen) or "nothing") if made else ""
            again = again or not seen.isdisjoint(update)
            seen.update(update)
        body = "".join(
            f'<tr><td style="{_ROW};min-width:7.5em">{head}</td><td style="{_ROW}">{content}</td></tr>'
            for head, content in rows.items()
        )
        title = f"<b>{escape(lane)}</b>" if len(last) > 1 else ""
        tables.append(f'{title}<table style="border-collapse:collapse">{body}</table>')
    note = _small("A dashed frame: an earlier update has used this micro-batch already.") if again else ""
    return _small("Ledger: which micro-batches") + "".join(tables) + note


def _blocks(numbers: tuple[int, ...], used: set[int], lost: bool = False) -> str:
    blocks = []
    for one in numbers:
        style = f"border:1px solid {BLUE};background:{BLUE};color:#fff"
        if lost:
            style = f"border:1px solid {RED};text-decoration:line-through"
        elif one in used:
            style = f"border:2px dashed {RED}"
        blocks.append(f'<span style="{_BLOCK};{style}">{one}</span>')
    return " ".join(blocks)


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
