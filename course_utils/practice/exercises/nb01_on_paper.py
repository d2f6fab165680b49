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
EMPTY = "w.grad = None\n    w.grad = torch.tensor(0.0, dtype=torch.float64)"
GRAD_ON_PAPER = on_paper(
    "grad_on_paper",
    "01_gradients",
    solution,
    [
        *edits("forgets-the-old-gradient", OLD, EMPTY),
        *edits("forgets-a-path", "b = a + w", "b = a.detach() + w"),
        *edits("forgets-a-path/w-through-b", "b = a + w", "b = a + w.detach()"),
        *edits("forgets-a-path/w-through-a", "a = w * x", "a = w.detach() * x"),
        *edits("forgets-a-path/product", "(a * b)", "(a * b.detach())"),
        *edits("swapped", RETURN, 'return {"x.grad": w.grad.item(), "w.grad": x.grad.item()'),
        *edits("swapped", RETURN, 'return {"x.grad": w.grad.item() - 1, "w.grad": x.grad.item()'),
        *edits("none-is-not-zero", '"a.grad": None', '"a.grad": 0.0'),
        *edits("leaves-only", '"a.grad": None', '"a.grad": 15.0', '"a.grad": 9.0', '"a.grad": 6.0'),
        *edits("leaves-only/leaves", RETURN, 'return {"w.grad": None, "x.grad": None'),
    ],
)
