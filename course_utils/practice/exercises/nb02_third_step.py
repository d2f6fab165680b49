"""The exercise of notebook 02 on paper: what the third step of a program in letters reads from `.grad`."""

from itertools import cycle

import torch
from torch import nn

from course_utils.practice.bench import edits, on_paper


def read_by_step(program: str, number: int = 3, ignored: str = "") -> float | None:
    """What a program's step finds in `.grad`, as autograd has it. Batch k has the gradient 10 ** (k - 1).

    Args:
        program: Letters: z for zero_grad, f forward, b backward, s step. It is repeated for ever.
        number: Which step, counted from 1.
        ignored: Letters that do nothing.
    """
    w, loss, batch = nn.Parameter(torch.ones((), dtype=torch.float64)), None, 0
    optimizer = torch.optim.SGD([w], lr=0.1)
    for letter in cycle(program):
        if letter == "f":
            batch, loss = batch + 1, 10.0**batch * w
        elif letter == "s":
            number -= 1
            if not number:
                return None if w.grad is None else w.grad.item()
            optimizer.step()
        elif letter == "b" and loss is not None:
            loss.backward()
        elif letter == "z" and letter not in ignored:
            optimizer.zero_grad()


def solution():
    found = {program: read_by_step(program) for program in ("fbs", "bszf", "fbszs", "fbzfbs", "fbzs")}
    return found


RETURN = "return found"
THIRD_STEP = on_paper(
    "third_step",
    "02_zeroing",
    solution,
    [
        *edits("nothing-clears", RETURN, "return found | {'fbs': 100.0}"),
        *edits("forgets-z", "read_by_step(program)", "read_by_step(program, ignored='z' * ('z' in program))"),
        *edits(
            "forgets-z/one-batch",
            RETURN,
            "return found | {'fbzfbs': read_by_step('fbfbsz'), 'fbzs': read_by_step('fbsz')}",
        ),
        *edits("counts-rounds", RETURN, "return found | {'fbszs': 100.0, 'fbzfbs': 100.0}"),
        *edits("backward-before-forward", RETURN, "return found | {'bszf': 100.0}", "return found | {'bszf': 1.0}"),
        *edits("none-is-not-zero", RETURN, "return found | {'fbzs': 0.0}"),
    ],
)
