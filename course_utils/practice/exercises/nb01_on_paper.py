"""The exercise of notebook 01 on paper: what a small program leaves in `.grad`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

W, X, OLD = 3.0, 2.0, 1.0  # small, so that paper is enough, and each slip gives another number


def graph(*cut: str) -> dict[str, float | None]:
    """What the program on paper leaves in `.grad`. `cut` names uses of a value through which nothing flows back."""

    def through(use: str, value: Tensor) -> Tensor:
        return value.detach() if use in cut else value

    w, x = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (W, X))
    w.grad = None if "old" in cut else torch.tensor(OLD, dtype=torch.float64)
    a = through("w in a", w) * x
    b = through("a in b", a) + through("w in b", w)
    loss = through("a in loss", a) * through("b in loss", b)
    loss.backward()
    return {"w.grad": w.grad.item(), "x.grad": x.grad.item(), "a.grad": None}


def _slips() -> Iterator[Slip]:
    """The slips, with the numbers that autograd finds where a path is cut, and the old gradient is there or not."""
    old = "look at what was in it before backward()"
    yield Slip("forgets-the-old-gradient", old, {"w.grad": graph("old")["w.grad"]})
    for kept in ((), ("old",)):
        for use, hint in _USES.items():
            gives = graph(use, *kept)
            yield Slip("forgets-a-path", hint, {"w.grad": gives["w.grad"], "x.grad": gives["x.grad"]})
        right = graph(*kept)
        yield Slip("swapped", "the two are exchanged", {"w.grad": right["x.grad"], "x.grad": right["w.grad"]})
    yield Slip("none-is-not-zero", "no tensor at all is not a tensor of zeros", {"a.grad": lambda got: got == 0})
    yield Slip(
        "leaves-only", "only leaves keep a .grad, and a is the result of an operation", {"a.grad": lambda got: True}
    )
    yield Slip("leaves-only", "both are leaves, which keep what arrives", {"w.grad": None, "x.grad": None})


_USES = {
    "a in b": "a is used twice, in b and in loss, and something flows back through b, too",
    "a in loss": "a is used twice, in b and in loss, and loss passes something on to it directly, too",
    "w in b": "w is used twice, in a and in b, and something flows back through b, too",
    "w in a": "w is used twice, in a and in b, and something flows back through a, too",
    "b in loss": "loss is a product, and something flows back through its factor b, too",
}


@exercise(
    "grad_on_paper",
    notebook="01_gradients",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank. Write `None` where a tensor has no `.grad` at all.",
        "forgets-the-old-gradient": "`backward()` adds to `.grad`. What did it find there?",
        "forgets-a-path": "Draw the graph, and follow every arrow from loss back to the value. Each path adds a slope.",
        "swapped": "Which of the two tensors did you follow back to?",
        "leaves-only": "Whose `.grad` does `backward()` fill: that of every value, or of some?",
        "none-is-not-zero": "What does `.grad` hold where `backward()` never wrote anything?",
        "wrong-value": "First a, b and loss. Then backward: how fast does loss change with b, with a, with w?",
    },
)
def _grad_on_paper(answer: dict) -> str:
    judge_numbers(answer, graph(), _slips())
    return "autograd finds the same: every path adds a slope, and backward() adds their sum to what .grad held before."
