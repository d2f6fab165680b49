"""A moment of a record as HTML: the loop with its current line, weights and gradients, and the ledger below.

All styles are inline, so that the same HTML serves a widget, a notebook without a kernel and a page of its own. Its
colours (of Okabe and Ito) are readable on white and on black; nothing is said by a colour alone.
"""

from collections.abc import Iterable
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

STACKED = 230  # pixels for the numbers: beside the loop, with its 384 and a gap, from 650 on; below it otherwise

KEYS = {"start", "backward", "zero", "change", "step", "skipped", "error", "cut", "end"}  # the frames of a filmstrip
_SHOWN_FRAMES = 16


def said(tracks: list[Steps], places: tuple[int, ...]) -> str:
    """What has just happened, in a sentence for each record, as HTML."""
    sentences = [marked_up(sentence(steps, place)) for steps, place in zip(tracks, places, strict=True)]
    if len(tracks) == 1:
        return sentences[0]
    named = (f"<b>{escape(steps.loop.name)}:</b> {text}" for steps, text in zip(tracks, sentences, strict=True))
    columns = "".join(f'<div style="flex:1 1 24em;min-height:4.5em">{text}</div>' for text in named)
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 2.4em">{columns}</div>'


def marked_up(text: str) -> str:
    """
    >>> marked_up("`step()` < 1")
    '<code>step()</code> &lt; 1'
    """
    return sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


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
    longest = max(len(_joined(other)) for other in steps.frames)
    style = (
        f"{_MONO};{_FAINT};min-height:{1.5 * (1 + longest // 50):g}em;padding:0.3em 0 0 1.4em;overflow-wrap:anywhere"
    )
    return f'<div style="{style}">{escape(_joined(frame), quote=False) or "&nbsp;"}</div>'


def _joined(frame: Frame) -> str:
    return " · ".join(f"{name} = {text}" for name, text in frame.variables.items())


def state(steps: Steps, place: int) -> str:
    """The weights, `.grad` and the optimizer's state."""
    now, before = steps.frames[place], steps.frames[max(place - 1, 0)]
    table = (_numbers if _is_tiny(now.weights.values()) else _norms)(steps, before, now)
    optimizers = "; ".join(map(escape, now.optimizers)) or "no optimizer"
    return f'{_title("After this line")}<div style="overflow-x:auto">{table}</div>{_note(optimizers)}'


def ledger(steps: Steps, frame: Frame) -> str:
    """A block for each micro-batch: those in `.grad` now, those that were thrown away, and those of each update."""
    last = steps.frames[-1].ledgers
    tables = []
    for lane, whole in last.items() or [("", Ledger())]:
        book = frame.ledgers.get(lane, Ledger())
        used = set().union(*book.updates) if book.updates else set()
        grads = frame.grads.values()
        empty = "None" if all(values is None for values in grads) else "zeros"
        if any(values is not None and values.norm for values in grads):
            empty = "from before the loop"
        rows = [_row("in .grad now", _blocks(book.held, used) if book.held else f'<i style="{_FAINT}">{empty}</i>')]
        if any(other.ledgers.get(lane, Ledger()).lost for other in steps.frames):
            rows.append(_row("thrown away", _blocks(book.lost, set(), lost=True) if book.lost else ""))
        first = max(0, len(book.updates) - ROWS)
        seen: set[int] = set().union(*book.updates[:first]) if first else set()
        for count, held in enumerate(book.updates[first:], start=first + 1):
            rows.append(_row(f"▲ update {count}", _blocks(held, seen) if held else f'<i style="{_FAINT}">nothing</i>'))
            seen |= set(held)
        rows += [_row("", "")] * (min(len(whole.updates), ROWS) - len(book.updates[first:]))
        title = f"<b>{escape(lane)}</b>" if len(last) > 1 else ""
        tables.append(f'{title}<table style="border-collapse:collapse;margin:0;border:0">{"".join(rows)}</table>')
    again = any(len(sum(book.updates, ())) > len(set(sum(book.updates, ()))) for book in last.values())
    note = _note("A dashed frame: an earlier update has used this micro-batch already.") if again else ""
    return _title("Ledger: which micro-batches") + "".join(tables) + note


def _title(text: str) -> str:
    return f'<div style="font-size:12px;{_FAINT};margin-bottom:0.2em">{text}</div>'


def _note(text: str) -> str:
    return f'<div style="font-size:12px;{_FAINT};margin-top:0.3em">{text}</div>'


def panel(tracks: list[Steps], places: tuple[int, ...]) -> list[str]:
    """A moment of one record, or of two side by side: pieces of HTML to be joined. Many moments share a piece."""
    if len(tracks) == 1:
        (steps,), (place,) = tracks, places
        return [*_BEGIN, *_code_of(steps, place), *_numbers_of(steps, place), "</div>"]
    pieces, tallest = list(_BEGIN), max(len(steps.loop.lines) for steps in tracks)
    for steps, place in zip(tracks, places, strict=True):
        pieces += ['<div style="flex:1 1 24em;min-width:0">', *_code_of(steps, place, tallest)]
        pieces += ['<div style="height:0.7em"></div>', *_numbers_of(steps, place), "</div>"]
    return [*pieces, "</div>"]


_BEGIN = ('<div style="display:flex;flex-wrap:wrap;gap:0.8em 2.4em;font-size:13px;line-height:1.5">',)


def _code_of(steps: Steps, place: int, tallest: int = 0) -> list[str]:
    frame = steps.frames[place]
    missing = max(0, tallest - len(steps.loop.lines))  # two loops side by side take the same height
    filled = f'<div style="{_MONO};height:{1.55 * missing:g}em"></div>' if missing else ""
    width = 8 * (min(100, max(44, *map(len, steps.loop.lines))) + 4)  # the same for most loops, and their versions
    return [
        f'<div style="flex:0 1 {width}px;min-width:0">',
        code(steps, frame),
        filled + variables(steps, frame),
        "</div>",
    ]


def _numbers_of(steps: Steps, place: int) -> list[str]:
    values = steps.frames[0].weights.values()
    letters = _letters(steps.frames[0].weights) if _is_tiny(values) else 23 + 9 * len(_state_keys(steps))
    width = max(STACKED, 8 * (11 + letters))
    below = ledger(steps, steps.frames[place])
    start = f'<div style="flex:1 1 {width}px;min-width:0">'
    return [start, state(steps, place), f'<div style="height:0.9em"></div>{below}</div>']


def _is_tiny(values: Iterable[Values]) -> bool:
    return numbers_of(values) <= TINY


def _letters(weights: dict[str, Values]) -> int:
    """How wide the columns of a tiny model are."""
    return sum(max(7, len(name) + 2) for name in _names(weights))


def _names(weights: dict[str, Values]) -> list[str]:
    """Of all single numbers."""
    return [entry(name, values, place) for name, values in weights.items() for place in range(values.size)]


# The tables of numbers


def _cell(text: str, changed: bool = False, span: int = 1, style: str = "") -> str:
    mark = f";font-weight:bold;box-shadow:inset 0 -3px 0 {ORANGE}" if changed else ""
    wide = f' colspan="{span}"' if span > 1 else ""
    return f'<td{wide} style="{_CELL}{mark};{style}">{text}</td>'


def _head(text: str, kind: str = "col", style: str = "") -> str:
    side = "left" if kind == "row" else "right"
    style = f"{_CELL};text-align:{side};font-weight:normal;{_FAINT};{style}"
    return f'<th scope="{kind}" style="{style}">{escape(text)}</th>'


def _table(rows: list[str]) -> str:
    return f'<table style="border-collapse:collapse;margin:0;border:0;{_MONO}">{"".join(rows)}</table>'


def _numbers(steps: Steps, before: Frame, now: Frame) -> str:
    """A tiny model: a column for each of its numbers."""
    sizes = {name: values.size for name, values in now.weights.items()}
    width = "4.6em" if sum(sizes.values()) <= 6 else "3.2em"

    def row(title: str, was: dict[str, Values | None], values: dict[str, Values | None]) -> str:
        cells = []
        for name, size in sizes.items():
            new, old = values.get(name), was.get(name)
            if new is None:
                cells.append(_cell("None", old is not None, size, f"text-align:{'right' if size == 1 else 'center'}"))
            elif new.size != size:  # a state of another shape, such as a count
                cells.append(_cell(_all_of(new), old != new, size))
            else:
                for place, value in enumerate(new.numbers):
                    cells.append(_cell(number(value), old is None or old.numbers[place] != value))
        return f"<tr>{_head(title, kind='row')}{''.join(cells)}</tr>"

    heads = [_head(name, style=f"min-width:{width}") for name in _names(now.weights)]
    rows = [f"<tr>{_head('')}{''.join(heads)}</tr>", row("value", before.weights, now.weights)]
    rows.append(row(".grad", before.grads, now.grads))
    for key in _state_keys(steps):
        was, values = ({name: some.get(key) for name, some in frame.state.items()} for frame in (before, now))
        rows.append(row(key, was, values))
    return _table(rows)


def _all_of(values: Values) -> str:
    return ", ".join(map(number, values.numbers)) or number(values.norm)


def _norms(steps: Steps, before: Frame, now: Frame) -> str:
    """A larger model: for each parameter the norms of its weights, of `.grad` with a bar, and of the state."""
    keys = _state_keys(steps)
    largest = max((v.norm for frame in steps.frames for v in frame.grads.values() if v is not None), default=0.0)
    heads = ["norms", "value", ".grad", "", *keys]
    rows = [f"<tr>{''.join(_head(text, kind='row' if not place else 'col') for place, text in enumerate(heads))}</tr>"]
    names = list(now.weights)
    for name in names[:ROWS]:
        weight, grad, old = now.weights[name], now.grads[name], before.grads[name]
        share = 0.0 if grad is None or not largest else min(1.0, grad.norm / largest)
        bar = (
            f'<div style="width:5em"><div style="height:0.8em;background:{BLUE};width:{100 * share:.0f}%"></div></div>'
        )
        cells = [
            _cell(number(weight.norm, 3), weight != before.weights[name], style="min-width:4.6em"),
            _cell("None" if grad is None else number(grad.norm, 3), grad != old, style="min-width:4.6em"),
            _cell(f'<div style="width:4em">{bar}</div>'),
        ]
        for key in keys:
            was, value = (frame.state.get(name, {}).get(key) for frame in (before, now))
            text = "None" if value is None else number(value.numbers[0] if value.size == 1 else value.norm, 3)
            count = value is not None and value.size == 1
            cells.append(_cell(text, was != value, style="" if count else "min-width:4.6em"))
        rows.append(f"<tr>{_head(name, kind='row')}{''.join(cells)}</tr>")
    more = len(names) - ROWS
    note = f'<div style="font-size:12px;{_FAINT}">and {more} more parameters</div>' if more > 0 else ""
    return _table(rows) + note


def _state_keys(steps: Steps) -> list[str]:
    """What the optimizer holds at any time of the record: rows that are there from the start do not make it jump."""
    found = (key for frame in steps.frames for some in frame.state.values() for key in some)
    return list(dict.fromkeys(found))


# The blocks of the ledger


def _row(title: str, content: str) -> str:
    style = "border:0;background:none;padding:1px 0;height:1.75em;text-align:left;vertical-align:middle"
    return (
        f'<tr style="background:none"><td style="{style};width:7.5em;white-space:nowrap">{title or "&nbsp;"}</td>'
        f'<td style="{style};white-space:nowrap">{content}</td></tr>'
    )


def _blocks(numbers: tuple[int, ...], used: set[int], lost: bool = False) -> str:
    hidden = max(0, len(numbers) - BLOCKS)
    more = f'<span style="{_FAINT}">{hidden} more, then </span>' if hidden else ""
    return more + " ".join(_block(one, one in used, lost) for one in numbers[hidden:])


def _block(one: int, again: bool, lost: bool = False) -> str:
    if lost:
        style, note = f"border:1px solid {RED};text-decoration:line-through", "thrown away"
    elif again:
        style, note = f"border:2px dashed {RED}", "used before"
    else:
        style, note = f"border:1px solid {BLUE};background:{BLUE};color:#fff", ""
    title = f' title="micro-batch {one}, {note}"' if note else ""
    common = (
        "display:inline-block;min-width:1.5em;box-sizing:border-box;text-align:center;padding:0 2px;line-height:1.4"
    )
    return f'<span style="{common};{style}"{title}>{one}</span>'


# Without a kernel: the frames in which gradients change, one below the other


def key_frames(steps: Steps) -> list[int]:
    """The places of the frames in which something happens to gradients or weights, at most 16; the last is the end."""
    keys = [place for place, frame in enumerate(steps.frames) if frame.kind in KEYS]
    if len(keys) > _SHOWN_FRAMES:
        keys = keys[: _SHOWN_FRAMES - 1] + keys[-1:]
    return keys


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


def strip(steps: Steps, title: str = "") -> str:
    """The filmstrip as HTML: a plain table, which is readable without any style."""
    head, rows = strip_rows(steps)
    style = "text-align:left;vertical-align:top"

    def cell(kind: str, text: str) -> str:
        return f'<{kind} style="{style}">{marked_up(text)}</{kind}>'

    def row(kind: str, texts: list[str]) -> str:
        return f"<tr>{''.join(cell(kind, text) for text in texts)}</tr>"

    body = "".join(row("td", texts) for texts in rows)
    caption = f"<p><b>{marked_up(title)}</b></p>" if title else ""
    return f"{caption}<table><thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"


def plain(steps: Steps) -> str:
    """The ledger as text: the micro-batches of each update, what was thrown away and what is left."""
    lines = []
    books = steps.frames[-1].ledgers
    for lane, book in books.items():
        prefix = f"{lane}: " if len(books) > 1 else ""
        for count, used in enumerate(book.updates, start=1):
            lines.append(f"{prefix}update {count} uses {listed(used) if used else 'nothing'}")
        if book.lost:
            lines.append(f"{prefix}thrown away: {listed(book.lost)}")
        if book.unused:
            lines.append(f"{prefix}left in .grad: {listed(book.unused)}")
    last = steps.frames[-1]
    if last.kind in ("error", "cut"):
        lines.append(sentence(steps, len(steps.frames) - 1).replace("`", ""))
    return "\n".join(lines) or "no backward pass and no step"
