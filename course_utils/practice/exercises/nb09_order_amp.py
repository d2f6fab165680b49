"""The exercise of notebook 09 that puts the calls of a window under a GradScaler in order."""

from collections.abc import Callable
from math import inf

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, scaler_refusals
from course_utils.practice.ordering import judge_order
from course_utils.practice.updates import CLIP_RTOL, OLD, recorded_tally

LINES = {  # as the notebook shows them
    "A": "scaler.update()",
    "B": "clip_grad_norm_(model.parameters(), max_norm)",
    "C": "scaler.scale(loss_fn(model, batch) / n).backward()",
    "D": "optimizer.step()",
    "E": "if (i + 1) % n == 0:",
    "F": "scaler.unscale_(optimizer)",
    "G": "optimizer.zero_grad()",
    "H": "for i, batch in enumerate(batches):",
    "I": "scaler.step(optimizer)",
}
_MAKES = {"i": "H", "batch": "H"}  # the line that makes each name
_HEADER = """def train(model, batches, loss_fn, optimizer, scaler, n, max_norm):
    from torch.nn.utils import clip_grad_norm_
"""
SCALE = 1024.0
GOOD, LARGE, BROKEN = 1.0, 16.0, inf  # by what the first gradient of a window is multiplied


@exercise(
    "order_amp",
    notebook="09_amp",
    takes=(str, list, tuple),
    hints={
        "no-loop": "Which line makes everything after it happen once for each micro-batch?",
        "nested-loop": "One pass over the micro-batches is enough: how often does the loop inside the loop run?",
        "used-too-early": "Which line makes `i` and `batch`, and which of your lines comes before it?",
        "idle-line": "Cover each line in turn. Does anything change without it?",
        "stale-gradients": "A line may be used twice. What is in `.grad` before the first window, and what is there "
        "after a step, or after a step that the scaler has left out?",
        "discarded-gradients": "Who else runs every time your zeroing does? It belongs to the whole window.",
        "missing-backward": "Which of your lines should run for each micro-batch, and which only at a window's end?",
        "irregular-window": "Which of your lines run for each micro-batch, and which once a window?",
        "clip-timing": "When you clip, is `.grad` scaled, and is the window complete? `max_norm` is meant for the "
        "true gradient of a whole window.",
        "scaler-timing": "Each window needs one `unscale_` and one `update`, both after its last backward pass.",
        "unguarded-step": "Two of the lines make a step. Which of them looks for an infinity first?",
    },
)
def _order_amp(answer: str | list | tuple) -> str:
    order = judge_order(answer, LINES, _HEADER, _judge, _MAKES)
    return (
        f"{order} ran with N = 1 and 4, with old gradients, a gradient to clip and one that overflows: every update "
        "is that of its own window, unscaled once and clipped once."
    )


def _judge(train: Callable) -> None:
    for n, factors in ((4, (GOOD, LARGE, GOOD)), (1, (GOOD, LARGE)), (4, (GOOD, BROKEN, GOOD))):
        _judge_case(train, n, factors)


def _judge_case(train: Callable, n: int, factors: tuple[float, ...]) -> None:
    """Runs windows of n micro-batches of one sample each, and compares `.grad` at every step."""
    case, max_norm = f"windows of {n}", 2.0
    first = torch.ones(n * len(factors), dtype=torch.float64)
    first[::n] = torch.tensor(factors)
    tally, optimizer, recorder = recorded_tally(len(first), 1.0, dirty=True)
    scaler = GradScaler("cpu", init_scale=SCALE)
    recorder.start_epoch()

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        values = model(batch)
        values.register_hook(lambda gradient: gradient * first[batch])  # where it is infinite, the loss is finite
        return values.mean()

    known = ("discarded-gradients", "the scaler finds no gradient to step with. Something zeroes inside the window",
             "for this optimizer")  # fmt: skip
    with scaler_refusals(case, known):
        train(tally, list(torch.arange(len(first)).split(1)), loss_fn, optimizer, scaler, n, max_norm)

    wholes = [whole / n for whole in torch.block_diag(*first.split(n))]
    made = [whole for whole in wholes if whole.isfinite().all()]
    rows = [torch.zeros_like(first) if row is None else row for row in recorder.epochs[-1]]
    if not rows and not recorder.backwards:
        raise Mistake("leftover-gradients", f"{case}: no backward pass and no step has run.")
    if 0 < recorder.backwards < len(first):
        raise Mistake(
            "missing-backward", f"{case}: {recorder.backwards} backward passes have run instead of {len(first)}."
        )
    if len(rows) < len(made) < len(wholes) and rows:
        found = "a window overflows, the scaler leaves it out, and the next one finds the infinity again"
        raise Mistake("stale-gradients", f"{case}: {found}. Zero after a skipped step, too.")
    if not rows:
        raise Mistake("leftover-gradients", f"{case}: {recorder.backwards} backward passes and no step have run.")
    if len(rows) > len(wholes):
        raise Mistake("irregular-window", f"{case}: {len(rows)} steps have run instead of {len(wholes)}.")
    if any(not row.isfinite().all() for row in rows):
        raise Mistake("unguarded-step", f"{case}: a gradient with an infinity reached the weights.")
    for number, (row, whole) in enumerate(zip(rows, made, strict=False), start=1):
        _judge_row(row, whole, n, number, max_norm, case)
    if len(rows) != len(made):
        raise Mistake("irregular-window", f"{case}: {len(rows)} updates were made instead of {len(made)}.")


def _judge_row(row: Tensor, whole: Tensor, n: int, number: int, max_norm: float, case: str) -> None:
    """Raises a `Mistake` that names how the gradient of an update differs from that of its window, clipped."""
    norm, got = float(whole.norm()), float(row.norm())
    want = whole * min(1.0, max_norm / norm)
    if close(row, want, CLIP_RTOL):
        return
    says, inside = f"{case}, update {number}", whole != 0
    if not row.any():
        raise Mistake("discarded-gradients", f"{says}: the step found no gradient. Something zeroes before it.")
    outside = float(row[~inside].abs().max()) if (~inside).any() else 0.0
    if outside or close(row[inside] - whole[inside], torch.full_like(row[inside], OLD), CLIP_RTOL):
        found = "gradients of earlier windows, or those that were there at first, are in it as well"
        raise Mistake("stale-gradients", f"{says}: {found}.")
    if close(got, max_norm / SCALE, 1e-3) or close(got * SCALE, norm, 1e-3):
        found = f"its norm is {got:.3g} instead of {float(want.norm()):.3g}"
        raise Mistake("clip-timing", f"{says}: {found}, because the scaled gradient was clipped.")
    if close(row, whole * SCALE, CLIP_RTOL) or close(got, max_norm * SCALE, 1e-3):
        raise Mistake("scaler-timing", f"{says}: it is {SCALE:g} times too large, since nothing has unscaled it.")
    if close(row, whole, CLIP_RTOL):
        raise Mistake("clip-timing", f"{says}: its norm is {got:.3g}, above max_norm = {max_norm:g}.")
    counts = [float(f"{count:.3g}") for count in (row / want)[inside].tolist()]
    if 0.0 in counts:
        raise Mistake("discarded-gradients", f"{says}: its micro-batches count {counts} times what they should.")
    bug = "scaler-timing" if max(counts) > 100 * min(counts) else "clip-timing"
    raise Mistake(bug, f"{says}: its micro-batches count {counts} times what they should.")
