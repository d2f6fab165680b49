"""What one moment of a loop has done, in a sentence. Code in it stands between backquotes."""

from collections.abc import Iterable
from math import hypot

from course_utils.stepping.recorder import LIMIT, Ledger, Moment, Recording, Values, format_number


def sentence(recording: Recording, index: int) -> str:
    """What happened between the moment before and this one.

    Args:
        recording: The recorded loop.
        index: The number of the moment in it, from 0.
    """
    before, now = recording.moments[max(index - 1, 0)], recording.moments[index]
    book, earlier = now.ledgers.get(now.lane, Ledger()), before.ledgers.get(now.lane, Ledger())
    grads = _change(before.grads, now.grads)
    match now.kind:
        case "start":
            return "The loop is called. None of its lines has run yet."
        case "loss":
            return f"Now {now.text}."
        case "backward":
            how = "adds" if any(values and values.norm for values in before.grads.values()) else "puts"
            where = "to" if how == "adds" else "into"
            return f"`backward()` {how} the gradient of {listed(book.held[-1:])} {where} `.grad`: {grads}."
        case "zero":
            lost = book.lost[len(earlier.lost) :]
            thrown_away = f" No step has used {listed(lost)}: thrown away." if lost else ""
            return f"This line empties `.grad`: {grads}.{thrown_away}"
        case "change" if before.weights != now.weights:
            return f"This line changes the weights: {_moved(before, now)}."
        case "change":
            return f"This line changes `.grad`: {grads}."
        case "step":
            return _step(before, now, *book.updates)
        case "error":
            return f"The loop stops at this line with an error. {now.text}"
    if index == LIMIT:
        return f"The record is full: it holds {LIMIT} moments. Pass fewer micro-batches to see the whole run."
    updates = sum(len(book.updates) for book in now.ledgers.values())
    said = f"The loop has ended after {updates} update{'s' * (updates != 1)}."
    for book in now.ledgers.values():
        if book.held:
            said += f" `.grad` still holds {listed(book.held)}."
        if unused := [number for number in book.held if number not in book.used]:
            said += f" No step has used {listed(unused)}."
    return said


def listed(numbers: Iterable[int]) -> str:
    """
    >>> listed([1]), listed([2, 4, 5])
    ('micro-batch 1', 'micro-batches 2, 4, 5')
    """
    numbers = list(numbers)
    return f"micro-batch{'es' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _step(before: Moment, now: Moment, *updates: tuple[int, ...]) -> str:
    *earlier, used = updates
    moved = "no weight moves" if before.weights == now.weights else _moved(before, now)
    said = f"Update {len(updates)}{f' of {now.lane}' if len(now.ledgers) > 1 else ''}: `step()` "
    if not used:
        return f"{said}finds no gradient of a micro-batch in `.grad`: {moved}."
    again = [one for one in used if any(one in update for update in earlier)]
    reused = f" An earlier update has used {listed(again)} already." if again else ""
    return f"{said}uses {listed(used)}: {moved}.{reused}"


def _moved(before: Moment, now: Moment) -> str:
    whose = next(iter(now.weights)) if len(now.weights) == 1 else "their"
    return f"{whose} {_change(before.weights, now.weights)}"


def _change(before: dict[str, Values | None], now: dict[str, Values | None]) -> str:
    """How a single tensor has changed, or the common norm of several."""
    if len(now) == 1:
        ((name, value),) = now.items()
        return f"{before[name]} → {value}"
    return f"norm {_norm(before)} → {_norm(now)}"


def _norm(tensors: dict[str, Values | None]) -> str:
    return format_number(hypot(*(values.norm for values in tensors.values() if values)))
