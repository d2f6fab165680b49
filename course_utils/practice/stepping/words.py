"""What one line of a loop has done, in a sentence. Code in it stands between backquotes."""

import ast
from collections.abc import Iterable
from math import hypot, isfinite

from course_utils.recording.stepping import Frame, Ledger, Steps, Values, number, numbers_of

_FEW = 3  # changes that are listed one by one


def sentence(steps: Steps, place: int) -> str:
    """What happened between the frame before and this one.

    Args:
        steps: The record.
        place: The number of the frame in it, from 0.
    """
    now = steps.frames[place]
    before = steps.frames[max(place - 1, 0)]
    said = _SAY.get(now.kind, _line)(steps, before, now)
    if now.printed.strip():
        said += f" It prints: {now.printed.strip()[:80]}"
    return said


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


def entry(name: str, values: Values, place: int) -> str:
    """The name of one number of a tensor."""
    return name if values.size == 1 else f"{name}[{place}]"


def grad_text(grads: dict[str, Values | None]) -> str:
    """All gradients of a tiny model: "None", "3", "0.25, 0, 0"."""
    if all(values is None for values in grads.values()):
        return "None"
    if len(grads) == 1:
        (values,) = grads.values()
        return _numbers(values)
    return "; ".join(f"{name} {'None' if values is None else _numbers(values)}" for name, values in grads.items())


def _numbers(values: Values) -> str:
    if not values.numbers:
        return f"norm {number(values.norm)}"
    text = ", ".join(map(number, values.numbers))
    return text if values.size == 1 else f"[{text}]"


def _start(steps: Steps, before: Frame, now: Frame) -> str:
    said = "The loop is called. None of its lines has run yet."
    if any(now.grads.values()):
        said += f" `.grad` already holds something: {_change(now.grads, now.grads)}."
    return said


def _forward(steps: Steps, before: Frame, now: Frame) -> str:
    if now.loss is not None:
        return f"The forward pass: the loss is {number(now.loss)}."
    new = _variables(before, now, steps.loop.statement(now.line))
    return f"The forward pass: {new}." if new else "The forward pass."


def _backward(steps: Steps, before: Frame, now: Frame) -> str:
    book = now.ledgers[now.lane]
    which = f"micro-batch {book.held[-1]}" if book.held else "this micro-batch"
    if steps.rank is not None:  # the difference is not its gradient alone: it may have been averaged with others
        return f"`backward()` of {which} is over. `.grad`: {_change(before.grads, now.grads)}."
    old, new = ([values for values in grads.values() if values is not None] for grads in (before.grads, now.grads))
    if not any(values.norm for values in old):
        return f"`backward()` puts the gradient of {which} into `.grad`: {_change(before.grads, now.grads)}."
    if numbers_of(old) == numbers_of(new) == 1:
        added = new[0].numbers[0] - old[0].numbers[0]
        if isfinite(old[0].norm) and added:  # a sum that is NaN, or too coarse, does not show what came
            which += f", {number(added)},"
    return f"`backward()` adds the gradient of {which} to `.grad`: {_change(before.grads, now.grads)}."


def _zero(steps: Steps, before: Frame, now: Frame) -> str:
    who = "`zero_grad()`" if "zero_grad" in steps.loop.lines[now.line - 1] else "This line"
    said = f"{who} empties `.grad`: {_change(before.grads, now.grads)}."
    lost = set(now.ledgers[now.lane].lost) - set(before.ledgers.get(now.lane, Ledger()).lost)
    if lost:
        said += f" No step has used {listed(sorted(lost))}: thrown away."
    return said


def _changed(steps: Steps, before: Frame, now: Frame) -> str:
    return f"This line changes `.grad`: {_change(before.grads, now.grads)}."


def _step(steps: Steps, before: Frame, now: Frame) -> str:
    *earlier, used = now.ledgers[now.lane].updates
    moved = _change(before.weights, now.weights, labelled=True)
    of = f" of {now.lane}" if len(now.ledgers) > 1 else ""
    said = f"Update {len(earlier) + 1}{of}: `step()` "
    if not used:
        none = all(values is None for values in now.grads.values())
        found = "nothing in `.grad`, which is None" if none else "only zeros in `.grad`"
        if before.weights == now.weights:
            return f"{said}finds {found}: no weight moves."
        return f"{said}finds {found}. The optimizer's state alone moves the weights: {moved}."
    said += f"uses {listed(used)}" + (f": {moved}." if before.weights != now.weights else ", and no weight moves.")
    if again := sorted(set(used) & set().union(*earlier)):
        said += f" An earlier update has used {listed(again)} already."
    return said


def _skipped(steps: Steps, before: Frame, now: Frame) -> str:
    return "`step()` finds infinity or NaN in `.grad` and leaves this update out."


def _error(steps: Steps, before: Frame, now: Frame) -> str:
    return f"The loop stops at this line with an error. {now.error}"


def _cut(steps: Steps, before: Frame, now: Frame) -> str:
    return (
        f"The record is full: it holds {len(steps.frames) - 1} moments, and the loop was stopped here. "
        "Give it fewer micro-batches to see all of its run."
    )


def _end(steps: Steps, before: Frame, now: Frame) -> str:
    updates = sum(len(book.updates) for book in now.ledgers.values())
    said = f"The loop has ended after {updates} update{'s' * (updates != 1)}."
    for book in now.ledgers.values():
        if book.held:
            said += f" `.grad` still holds {listed(book.held)}"
            if book.unused:
                which = listed(book.unused) if book.unused != book.held else "it" if len(book.held) == 1 else "them"
                said += f"; no step has used {which}"
            said += "."
    return said


def _line(steps: Steps, before: Frame, now: Frame) -> str:
    statement = steps.loop.statement(now.line) if now.line else None
    new = _variables(before, now, statement)
    if now.error:
        return f"This line raises {now.error}."
    if now.taken is not None:
        if isinstance(statement, ast.If):
            return "True: the lines below it run." if now.taken else "False: the lines below it are skipped."
        if not now.taken:
            return "Nothing is left: the loop is over."
        return f"The next round begins: {new}." if new else "The next round begins."
    if before.weights != now.weights:
        return f"The weights change: {_change(before.weights, now.weights, labelled=True)}."
    if before.grads != now.grads:
        return f"`.grad` changes: {_change(before.grads, now.grads)}."
    if before.optimizers != now.optimizers and before.optimizers:
        return f"The optimizer's settings change: {'; '.join(now.optimizers)}."
    if isinstance(statement, ast.Return):
        return "The loop returns."
    return f"Now {new}." if new else "No weight and no gradient changes."


_SAY = {
    "start": _start,
    "forward": _forward,
    "backward": _backward,
    "zero": _zero,
    "change": _changed,
    "step": _step,
    "skipped": _skipped,
    "error": _error,
    "cut": _cut,
    "end": _end,
}


def _variables(before: Frame, now: Frame, statement: ast.stmt | None) -> str:
    """The variables that a statement has assigned or changed, with their values."""
    head = [statement]
    if isinstance(statement, ast.For | ast.While | ast.If):
        head = [getattr(statement, "target", None) or statement.test]
    nodes = [node for part in head if part is not None for node in ast.walk(part)]
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return ", ".join(
        f"{name} = {text}"
        for name, text in now.variables.items()
        if name in assigned or before.variables.get(name) != text
    )


def _change(before: dict[str, Values | None], now: dict[str, Values | None], labelled: bool = False) -> str:
    """What has changed in some tensors: each number if there are few, or else their common norm."""
    if all(values is None for values in now.values()) and numbers_of(filter(None, before.values())) > 1:
        return f"all of it is None{'' if any(before.values()) else ' as before'}"
    numbers = sum(one.size for one in (now[name] or before[name] for name in now) if one is not None)
    changes = []
    for name in now:
        old, new = before.get(name), now[name]
        some = new or old
        if some is None or old == new:
            continue
        if not some.numbers:
            break
        for place in range(some.size):
            was, is_now = (None if one is None else one.numbers[place] for one in (old, new))
            if was != is_now and not (not was and not is_now and some.size > 1):
                label = "" if numbers == 1 and not labelled else f"{entry(name, some, place)} "
                changes.append(f"{label}{_or_none(was)} → {_or_none(is_now)}")
    else:
        if 0 < len(changes) <= _FEW:
            return ", ".join(changes)
    was, is_now = (_norm(values) for values in (before, now))
    if was == is_now:
        return f"its norm is {is_now}"
    return f"its norm goes from {was} to {is_now}"


def _or_none(value: float | None) -> str:
    return "None" if value is None else number(value)


def _norm(tensors: dict[str, Values | None]) -> str:
    return number(hypot(*(values.norm for values in tensors.values() if values is not None)))
