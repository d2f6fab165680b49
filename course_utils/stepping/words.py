"""What one line of a loop has done, in a sentence. Code in it stands between backquotes."""

import ast
from collections.abc import Iterable
from math import hypot

from course_utils.recording.stepping import Frame, Ledger, Steps, Values, format_number

_FEW = 2  # tensors whose changes are told one by one


def sentence(steps: Steps, place: int) -> str:
    """What happened between the frame before and this one.

    Args:
        steps: The record.
        place: The number of the frame in it, from 0.
    """
    before, now = steps.frames[max(place - 1, 0)], steps.frames[place]
    book = now.ledgers.get(now.lane, Ledger())
    grads = _change(before.grads, now.grads)
    match now.kind:
        case "start":
            return "The loop is called. None of its lines has run yet."
        case "backward":
            which = f"the gradient of {listed(book.held[-1:])}"
            if any(values is not None and values.norm for values in before.grads.values()):
                return f"`backward()` adds {which} to `.grad`: {grads}."
            return f"`backward()` puts {which} into `.grad`: {grads}."
        case "zero":
            who = "`zero_grad()`" if "zero_grad" in steps.loop.lines[now.line - 1] else "This line"
            lost = book.lost[len(before.ledgers.get(now.lane, Ledger()).lost) :]
            thrown_away = f" No step has used {listed(lost)}: thrown away." if lost else ""
            return f"{who} empties `.grad`: {grads}.{thrown_away}"
        case "change":
            return f"This line changes `.grad`: {grads}."
        case "step":
            return _step(before, now, *book.updates)
        case "skipped":
            return "`step()` finds infinity or NaN in `.grad` and leaves this update out."
        case "error":
            return f"The loop stops at this line with an error. {now.error}"
        case "cut":
            full = f"The record is full: it holds {len(steps.frames) - 1} moments, and the loop was stopped here."
            return f"{full} Give it fewer micro-batches to see all of its run."
        case "end":
            return _end(now.ledgers.values())
    return _line(before, now, steps.loop.statement(now.line))


def listed(numbers: Iterable[int]) -> str:
    """
    >>> listed([1]), listed([1, 2, 3, 4]), listed([2, 4, 5])
    ('micro-batch 1', 'micro-batches 1 to 4', 'micro-batches 2, 4 and 5')
    """
    numbers = list(numbers)
    if len(numbers) == 1:
        return f"micro-batch {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"micro-batches {numbers[0]} to {numbers[-1]}"
    return f"micro-batches {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _step(before: Frame, now: Frame, *updates: tuple[int, ...]) -> str:
    *earlier, used = updates
    moved = "no weight moves"
    if before.weights != now.weights:
        moved = _change(before.weights, now.weights, labelled=True)
    of = f" of {now.lane}" if len(now.ledgers) > 1 else ""
    said = f"Update {len(updates)}{of}: `step()` "
    if not used:
        none = all(values is None for values in now.grads.values())
        return f"{said}finds {'nothing in `.grad`, which is None' if none else 'only zeros in `.grad`'}: {moved}."
    said += f"uses {listed(used)}: {moved}."
    if again := [one for one in used if any(one in update for update in earlier)]:
        said += f" An earlier update has used {listed(again)} already."
    return said


def _end(books: Iterable[Ledger]) -> str:
    updates = sum(len(book.updates) for book in books)
    said = f"The loop has ended after {updates} update{'s' * (updates != 1)}."
    for book in books:
        if book.held:
            said += f" `.grad` still holds {listed(book.held)}"
            if book.unused:
                which = listed(book.unused) if book.unused != book.held else "it" if len(book.held) == 1 else "them"
                said += f"; no step has used {which}"
            said += "."
    return said


def _line(before: Frame, now: Frame, statement: ast.stmt | None) -> str:
    new = ", ".join(f"{name} = {text}" for name, text in now.variables.items() if before.variables.get(name) != text)
    if isinstance(statement, ast.If) and now.taken is not None:
        return "True: the lines below it run." if now.taken else "False: the lines below it are skipped."
    if now.taken is not None:
        if not now.taken:
            return "Nothing is left: the loop is over."
        return f"The next round begins: {new}." if new else "The next round begins."
    if before.weights != now.weights:
        return f"The weights change: {_change(before.weights, now.weights, labelled=True)}."
    if before.grads != now.grads:
        return f"`.grad` changes: {_change(before.grads, now.grads)}."
    if before.optimizers != now.optimizers:
        return f"The optimizer's settings change: {'; '.join(now.optimizers)}."
    return f"Now {new}." if new else "No weight and no gradient changes."


def _change(before: dict[str, Values | None], now: dict[str, Values | None], labelled: bool = False) -> str:
    """What has changed in some tensors: each if they are few, or else their common norm."""
    changed = [name for name in now if before[name] != now[name]]
    if changed and len(now) <= _FEW:
        names = [f"{name} " if labelled or len(now) > 1 else "" for name in changed]
        return ", ".join(f"{name}{before[of]} → {now[of]}" for name, of in zip(names, changed, strict=True))
    if all(values is None for values in now.values()):
        return "all of it is None"
    was, is_now = (format_number(hypot(*(one.norm for one in values.values() if one))) for values in (before, now))
    return f"its norm is {is_now}" if was == is_now else f"its norm goes from {was} to {is_now}"
