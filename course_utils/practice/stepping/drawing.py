"""A moment of a record as HTML: the loop with its current line, weights and gradients, and the ledger below.

All styles are inline, so that the same HTML serves a widget, a notebook without a kernel and a page of its own. Its
colours (of Okabe and Ito) are readable on white and on black; nothing is said by a colour alone.
"""

from html import escape
from re import sub

from course_utils.practice.stepping.words import entry, grad_text, listed, sentence
from course_utils.recording.stepping import Frame, Ledger, Steps, Values, number, numbers_of

ORANGE, BLUE, RED = "#E69F00", "#0072B2", "#D55E00"
TINY = 12  # numbers that a model may have to be shown number by number
ROWS = 8  # parameters of a larger model, and updates, that are shown
BLOCKS = 16  # of a row of the ledger

_MONO = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:13px"
_LINE = "1px solid rgba(128,128,128,0.45)"
_CELL = f"padding:1px 6px;text-align:right;border:0;border-bottom:{_LINE};background:none"
_FAINT = "opacity:0.7"
_TABLE = "border-collapse:collapse;margin:0;border:0"
_ROW = "border:0;background:none;padding:1px 0;height:1.75em;text-align:left;vertical-align:middle"
_BLOCK = "display:inline-block;min-width:1.5em;box-sizing:border-box;text-align:center;padding:0 2px;line-height:1.4"

STACKED = 230  # pixels for the numbers: beside the loop, with its 384 and a gap, from 650 on; below it otherwise

KEYS = {"start", "backward", "zero", "change", "step", "skipped", "error", "cut", "end"}  # the frames of a filmstrip
_SHOWN_FRAMES = 16


def marked_up(text: str) -> str:
    """
    >>> marked_up("`step()` < 1")
    '<code>step()</code> &lt; 1'
    """
    return sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def panel(steps: Steps, place: int) -> list[str]:
    """A moment of a record: pieces of HTML to be joined. Many moments share a piece."""
    frame, names = steps.frames[place], _names(steps)
    code_width = 8 * (min(100, max(44, *map(len, steps.loop.lines))) + 4)  # the same for most loops and their versions
    width = max(STACKED, 8 * (11 + sum(max(7, len(name) + 2) for name in names)))
    return [
        '<div style="display:flex;flex-wrap:wrap;gap:0.8em 2.4em;font-size:13px;line-height:1.5">',
        f'<div style="flex:0 1 {code_width}px;min-width:0">',
        code(steps, frame),
        variables(steps, frame),
        "</div>",
        f'<div style="flex:1 1 {width}px;min-width:0">',
        state(steps, place),
        f'<div style="height:0.9em"></div>{ledger(steps, frame)}</div>',
        "</div>",
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


def variables(steps: Steps, frame: Frame) -> str:
    """The loop's own variables, in as many lines as they ever need."""
    texts = [" · ".join(f"{name} = {text}" for name, text in one.variables.items()) for one in (frame, *steps.frames)]
    height = 1.5 * (1 + max(map(len, texts)) // 50)
    style = f"{_MONO};{_FAINT};min-height:{height:g}em;padding:0.3em 0 0 1.4em;overflow-wrap:anywhere"
    return f'<div style="{style}">{escape(texts[0], quote=False) or "&nbsp;"}</div>'


# The weights, `.grad` and the optimizer's state


def _is_tiny(steps: Steps) -> bool:
    return numbers_of(steps.frames[0].weights.values()) <= TINY


def _names(steps: Steps) -> list[str]:
    """Of all numbers of a tiny model, or else of what is shown of each parameter."""
    if not _is_tiny(steps):
        return ["norms", "value", ".grad", *_state_keys(steps)]
    weights = steps.frames[0].weights
    return [entry(name, values, place) for name, values in weights.items() for place in range(values.size)]


def _state_keys(steps: Steps) -> list[str]:
    """What the optimizer holds at any time of the record: rows that are there from the start do not make it jump."""
    found = (key for frame in steps.frames for some in frame.state.values() for key in some)
    return list(dict.fromkeys(found))


def state(steps: Steps, place: int) -> str:
    """A tiny model: a column for each of its numbers. A larger one: a row of norms for each parameter."""
    now, before = steps.frames[place], steps.frames[max(place - 1, 0)]
    tiny, sizes = _is_tiny(steps), {name: values.size for name, values in now.weights.items()}
    rows = {"value": (before.weights, now.weights), ".grad": (before.grads, now.grads)}
    for key in _state_keys(steps):
        rows[key] = tuple({name: some.get(key) for name, some in frame.state.items()} for frame in (before, now))
    if tiny:
        width = "4.6em" if sum(sizes.values()) <= 6 else "3.2em"
        table = [[_head(""), *(_head(name, style=f"min-width:{width}") for name in _names(steps))]]
        for title, (was, values) in rows.items():
            cells = [cell for name, size in sizes.items() for cell in _cells(was.get(name), values.get(name), size)]
            table.append([_head(title, "row"), *cells])
        more = 0
    else:
        table = [[_head(name, style="min-width:4.6em") for name in _names(steps)]]
        for name in list(sizes)[:ROWS]:
            table.append([_head(name, "row")])
            for was, values in rows.values():
                table[-1] += _cells(was.get(name), values.get(name), 0)
        more = len(sizes) - ROWS
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in table)
    html = f'<table style="{_TABLE};{_MONO}">{body}</table>'
    if more > 0:
        html += _small(f"and {more} more parameters", "top:0")
    optimizers = "; ".join(map(escape, now.optimizers)) or "no optimizer"
    html = f'<div style="overflow-x:auto">{html}</div>'
    return _small("After this line", "bottom:0.2em") + html + _small(optimizers, "top:0.3em")


def _cells(old: Values | None, new: Values | None, size: int) -> list[str]:
    """A cell for each of so many numbers; None, a count or the norm of a large tensor is one for all of them."""
    if new is not None and new.size == size:
        return [_cell(number(v), old is None or old.numbers[place] != v) for place, v in enumerate(new.numbers)]
    text = "None" if new is None else number(new.norm)
    return [_cell(text, old != new, size, f"text-align:{'center' if size > 1 else 'right'}")]


def _cell(text: str, changed: bool = False, span: int = 1, style: str = "") -> str:
    mark = f";font-weight:bold;box-shadow:inset 0 -3px 0 {ORANGE}" if changed else ""
    wide = f' colspan="{span}"' if span > 1 else ""
    return f'<td{wide} style="{_CELL}{mark};{style}">{text}</td>'


def _head(text: str, kind: str = "col", style: str = "") -> str:
    side = "left" if kind == "row" else "right"
    style = f"{_CELL};text-align:{side};font-weight:normal;{_FAINT};{style}"
    return f'<th scope="{kind}" style="{style}">{escape(text)}</th>'


def _small(text: str, margin: str) -> str:
    return f'<div style="font-size:12px;{_FAINT};margin-{margin}">{text}</div>'


# The ledger


def ledger(steps: Steps, frame: Frame) -> str:
    """A block for each micro-batch: those in `.grad` now, those that were thrown away, and those of each update."""
    last = steps.frames[-1].ledgers
    tables, grads = [], frame.grads.values()
    empty = "None" if all(values is None for values in grads) else "zeros"
    if any(values is not None and values.norm for values in grads):
        empty = "from before the loop"
    for lane, whole in last.items() or [("", Ledger())]:
        book = frame.ledgers.get(lane, Ledger())
        used = {one for update in book.updates for one in update}
        rows = [("in .grad now", _blocks(book.held, used) or f'<i style="{_FAINT}">{empty}</i>')]
        if whole.lost:
            rows.append(("thrown away", _blocks(book.lost, set(), lost=True)))
        seen: set[int] = set()
        updates = []
        for count, held in enumerate(book.updates, start=1):
            updates.append((f"▲ update {count}", _blocks(held, seen) or f'<i style="{_FAINT}">nothing</i>'))
            seen |= set(held)
        height = min(len(whole.updates), ROWS)
        rows += (updates + [("", "")] * height)[max(0, len(updates) - ROWS) :][:height]
        title = f"<b>{escape(lane)}</b>" if len(last) > 1 else ""
        body = "".join(
            f'<tr style="background:none"><td style="{_ROW};width:7.5em;white-space:nowrap">{head or "&nbsp;"}</td>'
            f'<td style="{_ROW};white-space:nowrap">{content}</td></tr>'
            for head, content in rows
        )
        tables.append(f'{title}<table style="{_TABLE}">{body}</table>')
    used = [[one for update in book.updates for one in update] for book in last.values()]
    again = any(len(numbers) > len(set(numbers)) for numbers in used)
    note = "A dashed frame: an earlier update has used this micro-batch already."
    note = _small(note, "top:0.3em") if again else ""
    return _small("Ledger: which micro-batches", "bottom:0.2em") + "".join(tables) + note


def _blocks(numbers: tuple[int, ...], used: set[int], lost: bool = False) -> str:
    blocks = []
    for one in numbers[-BLOCKS:]:
        style, note = f"border:1px solid {BLUE};background:{BLUE};color:#fff", ""
        if lost:
            style, note = f"border:1px solid {RED};text-decoration:line-through", "thrown away"
        elif one in used:
            style, note = f"border:2px dashed {RED}", "used before"
        title = f' title="micro-batch {one}, {note}"' if note else ""
        blocks.append(f'<span style="{_BLOCK};{style}"{title}>{one}</span>')
    hidden = len(numbers) - BLOCKS
    return (f'<span style="{_FAINT}">{hidden} more, then </span>' if hidden > 0 else "") + " ".join(blocks)


# Without a kernel: the frames in which gradients change, one below the other


def key_frames(steps: Steps) -> list[int]:
    """The places of the frames in which something happens to gradients or weights, at most 16; the last is the end."""
    keys = [place for place, frame in enumerate(steps.frames) if frame.kind in KEYS]
    return keys if len(keys) <= _SHOWN_FRAMES else keys[: _SHOWN_FRAMES - 1] + keys[-1:]


def strip_rows(steps: Steps) -> tuple[list[str], list[list[str]]]:
    """The filmstrip as a table of text: its head, and a row for each key frame."""
    tiny = numbers_of(steps.frames[0].weights.values()) <= 4
    values = ["weight", ".grad"] if tiny else []
    head = ["line", "what happens", *values, "micro-batches in it" if tiny else "micro-batches in .grad"]
    rows = []
    for place in key_frames(steps):
        frame = steps.frames[place]
        text = steps.loop.lines[frame.line - 1].strip() if frame.line > 1 else ""
        held = "; ".join(", ".join(map(str, book.held)) or "–" for book in frame.ledgers.values()) or "–"
        values = [grad_text(frame.weights), grad_text(frame.grads)] if tiny else []
        rows.append([f"`{text}`" if text else "", sentence(steps, place), *values, held])
    return head, rows


def strip(steps: Steps) -> str:
    """The filmstrip as HTML: a plain table, which is readable without any style."""

    def row(kind: str, texts: list[str]) -> str:
        cells = (f'<{kind} style="text-align:left;vertical-align:top">{marked_up(text)}</{kind}>' for text in texts)
        return f"<tr>{''.join(cells)}</tr>"

    head, rows = strip_rows(steps)
    body = "".join(row("td", texts) for texts in rows)
    return f"<table><thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"


def plain(steps: Steps) -> list[str]:
    """The ledger as text: the micro-batches of each update, what was thrown away and what is left."""
    lines = []
    for book in steps.frames[-1].ledgers.values():
        for count, used in enumerate(book.updates, start=1):
            lines.append(f"update {count} uses {listed(used) if used else 'nothing'}")
        lines += [f"thrown away: {listed(book.lost)}"] if book.lost else []
        lines += [f"left in .grad: {listed(book.unused)}"] if book.unused else []
    return lines or ["no backward pass and no step"]
