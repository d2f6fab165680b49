"""The exercise of notebook 08: a loop with two bugs, where fixing one hides the other."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.loops import windows
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.updates import OLD, Expected, judge_model, run_on_tally, sgd, squared_error

EQUAL, TAIL = (2,) * 8, (2,) * 10
LOOSE, TIGHT, BETWEEN = 100.0, 0.1, 0.4  # on a tally, a window of 8 samples has norm 0.35, one of 4 has 0.5


@exercise("two_bugs")
def _two_bugs(answer: Callable) -> str:
    for sizes, n, dirty in (
        (EQUAL, 4, False),
        (TAIL, 4, False),
        (EQUAL, 1, False),
        (TAIL, 100, False),
        (EQUAL, 4, True),
    ):
        case = f"{len(sizes)} micro-batches, N = {n}, max_norm = {LOOSE:g}, which no gradient reaches"
        observed = run_on_tally(lambda *loop: answer(*loop, LOOSE), sizes, n, dirty)
        Expected(sizes, n).compare(observed, case, OLD if dirty else None)
    for sizes, n, max_norm in ((EQUAL, 4, TIGHT), (TAIL, 4, TIGHT), (TAIL, 4, BETWEEN), (EQUAL, 1, TIGHT)):
        case = f"{len(sizes)} micro-batches, N = {n}, max_norm = {max_norm:g}"
        observed = run_on_tally(lambda *loop, limit=max_norm: answer(*loop, limit), sizes, n)
        Expected(sizes, n).compare_clipped(observed, case, max_norm)
    for n in (1, 4, 100):
        for max_norm in (TIGHT, LOOSE):
            _judge_parameters(answer, n, max_norm)
    return (
        "N = 1, 4 and longer than the epoch, short windows, a dirty start, limits that act always, sometimes and "
        "never: every window is its own mean, clipped once."
    )


def _judge_parameters(answer: Callable, n: int, max_norm: float) -> None:
    """Compares every parameter of a real model."""
    batches = [torch.randn(4, 3 + 2, dtype=torch.float64) for _ in range(6)]

    def train(loop: Callable) -> Callable[[nn.Module, Optimizer], None]:
        def two_epochs(model: nn.Module, optimizer: Optimizer) -> None:
            for _ in range(2):
                loop(model, list(batches), squared_error, optimizer, n, max_norm)

        return two_epochs

    case = f"on a real model, N = {n}, max_norm = {max_norm:g}"
    judge_model(train(answer), train(_large_batches), mlp(3, 5, 2).double(), sgd, case)


def _large_batches(
    model: nn.Module, batches: Sequence[Tensor], loss_fn: Callable, optimizer: Optimizer, n: int, max_norm: float
) -> None:
    for window in windows(batches, n):
        optimizer.zero_grad()
        loss_fn(model, torch.cat(window)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
