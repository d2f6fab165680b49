"""The bug to find in gradients_by_hand: an autograd that keeps what reaches the middle from one call to the next."""

from collections.abc import Callable
from functools import partial

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare, number


class Value:
    """A value of the autograd that notebook 01 builds, without a backward pass of its own."""

    def __init__(self, data: float, inputs: tuple = (), grad: float = 0.0):
        self.data, self.inputs, self.grad = data, inputs, grad

    def __add__(self, other: "Value") -> "Value":
        return Value(self.data + other.data, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other: "Value") -> "Value":
        return Value(self.data * other.data, ((self, other.data), (other, self.data)))


def in_order(last: Value, order: list[Value] | None = None) -> list[Value]:
    """The values that `last` was computed from, each one after its inputs, then `last`."""
    order = [] if order is None else order
    if last not in order:
        for source, _ in last.inputs:
            in_order(source, order)
        order.append(last)
    return order


def _one_call(walk: Callable) -> list[float]:
    a, b = Value(3.0, grad=7.0), Value(-0.5)
    c = a * b
    _call(walk, c * c + a * c)
    return [_grad(a), _grad(b)]


def _fresh_squares(walk: Callable) -> list[float]:
    a, found = Value(3.0), []
    for _ in range(3):
        _call(walk, a * a)
        found.append(_grad(a))
    return found


def _same_loss_twice(walk: Callable) -> list[float]:
    a, found = Value(3.0), []
    h = a * a
    loss = h * h
    for _ in range(2):
        _call(walk, loss)
        found.append(_grad(a))
    return found


def _shared_middle(walk: Callable) -> list[float]:
    a, found = Value(3.0), []
    h = a * a
    for loss in (h * h, h * a):
        _call(walk, loss)
        found.append(_grad(a))
    return found


_CASES = {  # what is done, and what is then in .grad
    "c = a * b, loss = c * c + a * c, a = 3, b = -0.5, 7 already in a.grad: the .grad of a and b": _one_call,
    "three calls, each on a new a * a, a = 3: a.grad after each": _fresh_squares,
    "h = a * a, loss = h * h, a = 3, two calls: a.grad after each": _same_loss_twice,
    "h = a * a, first h * h, then h * a, a = 3: a.grad after each call": _shared_middle,
}


def _call(walk: Callable, loss: Value) -> None:
    order = in_order(loss)
    before = [(value.data, value.inputs) for value in order]
    walk(list(order))
    if any(value.data != data or value.inputs != inputs for value, (data, inputs) in zip(order, before, strict=True)):
        raise Mistake("changed-input", "your function changes .data or .inputs; only .grad is to change.")


def _grad(value: Value) -> float:
    return number(value.grad)


def _walk(order: list[Value], clears: str = "middle", adds: bool = True, backwards: bool = True) -> None:
    """The walk with at most one bug: what it clears first, whether it adds, and in which order it goes."""
    for value in order:
        if clears == "all" or (clears == "middle" and value.inputs):
            value.grad = 0.0
    order[-1].grad = 1.0
    for value in reversed(order) if backwards else order:
        for source, slope in value.inputs:
            source.grad = source.grad * adds + slope * value.grad


_BUGS = {
    "keeps-the-middle": ("what reached the middle in the first call was still there in the second", {"clears": ""}),
    "clears-the-leaves": ("the sum from earlier calls is lost at the leaf", {"clears": "all"}),
    "assigns": ("the gradient of one of two uses is lost", {"adds": False}),
    "wrong-order": ("a value passed on what it had before all of it had arrived", {"backwards": False}),
    "does-nothing": ("no leaf has received anything", None),
}


@exercise(
    "walk_back",
    notebook="gradients_by_hand",
    hints={
        "not-attempted": "Which attribute of the leaves should have changed when your function returns?",
        "does-nothing": "Which line writes to the leaves, and is it reached?",
        "keeps-the-middle": "After the first call print `value.grad` for every value of `order`. Which of these "
        "numbers does the second call need, and which should be gone?",
        "clears-the-leaves": "Three calls on new squares should leave 6, 12, 18. Which values have to remember, and "
        "how do you tell them from the others?",
        "assigns": "What happens to the first slope when a value is used twice, as in a * a?",
        "wrong-order": "Through which end of the list does the gradient come in?",
        "changed-input": "Read `value.data` and `value.inputs`, and write only to `value.grad`.",
        "wrong-value": "Take `h = a * a` and `loss = h * h`, and work out on paper what reaches h, and then a.",
    },
)
def _walk_back(answer: Callable) -> str:
    if not _writes(answer):
        raise Mistake("not-attempted", "no .grad has changed yet.")
    for case, found_by in _CASES.items():
        right = found_by(_walk)
        got = found_by(answer)
        known = [
            (bug, hint, partial(found_by, partial(_walk, **how) if how is not None else _idle))
            for bug, (hint, how) in _BUGS.items()
        ]
        compare(got, right, f"{case}: expected {_listed(right)}, got {_listed(got)}", known)
    return "several paths, fresh graphs, one graph twice, and two losses with a common middle."


def _writes(walk: Callable) -> bool:
    """Whether it changes any .grad at all."""
    a = Value(3.0, grad=7.0)
    order = in_order(a * a + a)
    before = [value.grad for value in order]
    walk(list(order))
    return any(value.grad is not old for value, old in zip(order, before, strict=True))


def _idle(order: list[Value]) -> None:
    """A walk that changes nothing."""


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
