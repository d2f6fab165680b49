"""What one moment of a loop has done, in a sentence. Code in it stands between backquotes."""

from collections.abc import Sequence

from course_utils.stepping.recorder import LIMIT, Ledger, Moment


def sentence(before: Moment, now: Moment) -> str:
    """What happened between two moments that follow one another.

    Args:
        before: The earlier one.
        now: The later one.
    """
    book, earlier = now.ledgers.get(now.lane, Ledger()), before.ledgers.get(now.lane, Ledger())
    weights = grads = ""  # of several tensors the page shows what has changed
    if len(now.values) == 1:
        ((name, (weight, grad)),) = now.values.items()
        weights, grads = f": {name} {before.values[name][0]} → {weight}", f": {before.values[name][1]} → {grad}"
    match now.kind:
        case "start":
            return "The loop is called. None of its lines has run yet."
        case "loss":
            return f"Now {now.text}."
        case "backward":
            verb, to = ("puts", "into") if {grad for _, grad in before.values.values()} == {"None"} else ("adds", "to")
            return f"`backward()` {verb} the gradient of {listed(book.held[-1:])} {to} `.grad`{grads}."
        case "zero":
            lost = book.lost[len(earlier.lost) :]
            return f"This line empties `.grad`{grads}." + f" No step has used {listed(lost)}: thrown away." * bool(lost)
        case "change":
            moved = any(before.values[name][0] != weight for name, (weight, _) in now.values.items())
            return f"This line changes {f'the weights{weights}' if moved else f'`.grad`{grads}'}."
        case "step":
            used = book.updates[-1]
            whose = f" of {now.lane}" * (len(now.ledgers) > 1)
            uses = f"uses {listed(used)}" if used else "finds no gradient of a micro-batch in `.grad`"
            again = [number for number in used if number in earlier.used]
            reused = f" An earlier update has used {listed(again)} already." * bool(again)
            return f"Update {len(book.updates)}{whose}: `step()` {uses}{weights}.{reused}"
        case "error":
            return f"The loop stops at this line with an error. {now.text}"
        case "full":
            return f"The record is full: it holds {LIMIT} moments. Pass fewer micro-batches to see the whole run."
    updates = sum(len(book.updates) for book in now.ledgers.values())
    said = f"The loop has ended after {updates} update{'s' * (updates != 1)}."
    for book in now.ledgers.values():
        unused = [number for number in book.held if number not in book.used]
        said += f" `.grad` still holds {listed(book.held)}." * bool(book.held)
        said += f" No step has used {listed(unused)}." * bool(unused)
    return said


def listed(numbers: Sequence[int]) -> str:
    """
    >>> listed([1]), listed([2, 4, 5])
    ('micro-batch 1', 'micro-batches 2, 4, 5')
    """
    return f"micro-batch{'es' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
