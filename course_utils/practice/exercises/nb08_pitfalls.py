"""The exercise of notebook 08: a loop with two bugs, of which the mend of one hides the other."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from course_utils.loops import windows
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare_weights
from course_utils.practice.updates import Expected, Observed, run_on_tally

EQUAL, TAIL = (2,) * 8, (2,) * 10
LOOSE, TIGHT, BETWEEN = 100.0, 0.1, 0.4  # a window of 8 items has norm 0.35 on a tally, a short one of 4 items 0.5


@exercise("two_bugs")
def _two_bugs(answer: Callable) -> str:
    for sizes, n in ((EQUAL, 4), (TAIL, 4), (EQUAL, 1), (TAIL, 100)):
        _judge_windows(answer, sizes, n)
    _judge_windows(answer, EQUAL, 4, dirty=True)
    for sizes, n, max_norm in ((EQUAL, 4, TIGHT), (TAIL, 4, TIGHT), (TAIL, 4, BETWEEN), (EQUAL, 1, TIGHT)):
        _judge_clipping(answer, sizes, n, max_norm)
    for n in (1, 4, 100):
        for max_norm in (TIGHT, LOOSE):
            _judge_parameters(answer, n, max_norm)
    return (
        "N = 1, 4 and longer than the epoch, short windows, a dirty start, limits that act always, sometimes and "
        "never: every window is its own mean, clipped once."
    )


def _rows(answer: Callable, sizes: Sequence[int], n: int, max_norm: float, dirty: bool = False) -> Observed:
    return run_on_tally(lambda *loop: answer(*loop, max_norm), sizes, n, dirty)


def _wanted(sizes: Sequence[int], n: int) -> list[Tensor]:
    rows = []
    for window in windows(torch.arange(sum(sizes)).split(list(sizes)), n):
        rows.append(torch.zeros(sum(sizes), dtype=torch.float64))
        rows[-1][torch.cat(window)] = 1 / len(torch.cat(window))
    return rows * 2


def _judge_windows(answer: Callable, sizes: Sequence[int], n: int, dirty: bool = False) -> None:
    """With a limit that is never reached."""
    observed = _rows(answer, sizes, n, LOOSE, dirty)
    rows, wanted = observed.rows, _wanted(sizes, n)
    if len(rows) == len(wanted) and all(map(_near, rows, wanted)):
        return
    case = f"{len(sizes)} micro-batches, N = {n}, max_norm = {LOOSE:g}, which no gradient reaches"
    if dirty and rows and _near(rows[0], wanted[0] + 7):
        raise Mistake("stale-gradients", f"{case}: a gradient left by an earlier backward entered the first update.")
    bug, hint = Expected(sizes, n).diagnose(observed)
    raise Mistake(bug, f"{case}: {hint}.")


def _judge_clipping(answer: Callable, sizes: Sequence[int], n: int, max_norm: float) -> None:
    rows, whole = _rows(answer, sizes, n, max_norm).rows, _wanted(sizes, n)
    case = f"{len(sizes)} micro-batches, N = {n}, max_norm = {max_norm:g}"
    if len(rows) != len(whole):
        raise Mistake("irregular-window", f"{case}: {len(rows)} updates in place of {len(whole)}.")
    for k, (row, mean) in enumerate(zip(rows, whole, strict=True), start=1):
        norm = float(mean.norm())
        want = mean * min(1.0, max_norm / norm)
        if _near(row, want):
            continue
        got = float(row.norm())
        if _near(row, mean):
            hint = f"a gradient of norm {got:.3g} reached the step: it was not clipped, or not at that moment"
        elif _near(row / max(got, 1e-12), mean / norm):
            hint = f"the norm at the step is {got:.3g} in place of {float(want.norm()):.3g}"
        else:
            items = [f"{float(value):.2g}" for value in (row / want)[mean != 0]]
            hint = f"the items of update {k} count {', '.join(items[:8])} times what they should: clipping came between"
        raise Mistake("clip-timing", f"{case}: {hint}.")


def _judge_parameters(answer: Callable, n: int, max_norm: float) -> None:
    """Every parameter of a real model, under an optimizer with a memory."""
    batches = [torch.randn(4, 3 + 2, dtype=torch.float64) for _ in range(6)]
    ours = mlp(3, 5, 2).double()
    theirs = copy.deepcopy(ours)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    for window in [*windows(batches, n)] * 2:
        optimizer.zero_grad()
        loss_fn(ours, torch.cat(window)).backward()
        nn.utils.clip_grad_norm_(ours.parameters(), max_norm)
        optimizer.step()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        answer(theirs, list(batches), loss_fn, optimizer, n, max_norm)
    compare_weights(ours, theirs, f"on a real model, N = {n}, max_norm = {max_norm:g}", rtol=1e-5, atol=1e-6)


def _near(row: Tensor, want: Tensor) -> bool:
    """Clipping adds a millionth to the norm that it divides by; an own clipping need not."""
    return torch.allclose(row, want, rtol=1e-4, atol=1e-9)
