"""The exercise of notebook 01 on paper: what a small program leaves in `.grad`."""

import torch

from course_utils.practice.bench import edits, on_paper


def solution():
    w, x = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (3.0, 2.0))
    w.grad = torch.tensor(1.0, dtype=torch.float64)
    a = w * x
    b = a + w
    (a * b).backward()
    return {"w.grad": w.grad.item(), "x.grad": x.grad.item(), "a.grad": None}


OLD, RETURN = (
    "w.grad = torch.tensor(1.0, dtype=torch.float64)",
    'return {"w.grad": w.grad.item(), "x.grad": x.grad.item()',
)
PATHS = {
    ("b = a + w", "b = a.detach() + w"): "a is used twice, in b and in loss, and something flows back through b, too",
    (
        "(a * b)",
        "(a.detach() * b)",
    ): "a is used twice, in b and in loss, and loss passes something on to it directly, too",
    ("b = a + w", "b = a + w.detach()"): "w is used twice, in a and in b, and something flows back through b, too",
    ("a = w * x", "a = w.detach() * x"): "w is used twice, in a and in b, and something flows back through a, too",
    ("(a * b)", "(a * b.detach())"): "loss is a product, and something flows back through its factor b, too",
}
EMPTY = "w.grad = None\n    w.grad = torch.tensor(0.0, dtype=torch.float64)"
GRAD_ON_PAPER = on_paper(
    "grad_on_paper",
    "01_gradients",
    solution,
    [
        *edits("forgets-the-old-gradient", "look at what was in it before backward()", OLD, EMPTY),
        *(each for (old, new), says in PATHS.items() for each in edits("forgets-a-path", says, old, new)),
        *edits("swapped", "the two are exchanged", RETURN, 'return {"x.grad": w.grad.item(), "w.grad": x.grad.item()'),
        *edits("swapped", "the two are exchanged", RETURN,
               'return {"x.grad": w.grad.item() - 1, "w.grad": x.grad.item()'),
        *edits("none-is-not-zero", "no tensor at all is not a tensor of zeros", '"a.grad": None', '"a.grad": 0.0'),
        *edits("leaves-only", "only leaves keep a .grad, and a is the result of an operation", '"a.grad": None',
               '"a.grad": 15.0', '"a.grad": 9.0', '"a.grad": 6.0'),
        *edits("leaves-only", "both are leaves, which keep what arrives", RETURN, 'return {"w.grad": None, "x.grad": None'),
    ],
    passed="autograd finds the same: every path adds a slope, and backward() adds their sum to what .grad held before.",
)  # fmt: skip
