"""The exercise of notebook 09 that puts the calls of a window under a GradScaler in order."""

from collections.abc import Sequence
from math import inf

from course_utils.practice.bench import Exercise, Seen, edits
from course_utils.practice.exercises.nb09_amp import scaler_for
from course_utils.practice.loop import Case, Loop
from course_utils.practice.ordering import assemble, letters, require_one_loop

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
HEADER = """def train(model, batches, loss_fn, optimizer, scaler, n, max_norm):
    from torch.nn.utils import clip_grad_norm_
"""
CASES = [
    Case(((1,) * 12,), 4, dirty=True, factors=[(4, 16.0)], max_norm=2.0),
    Case(((1,) * 2,), 1, dirty=True, factors=[(1, 16.0)], max_norm=2.0),
    Case(((1,) * 12,), 4, dirty=True, factors=[(4, inf)], max_norm=2.0),
]


def watch(answer: str | Sequence[str], case: Case) -> Seen:
    """Runs the loop that an order makes."""
    order = letters(answer, LINES)
    require_one_loop(order, LINES)
    train, loop, scaler = assemble(HEADER, LINES, order, {"i": "H", "batch": "H"}), Loop(case), scaler_for(case)
    seen = loop.run(
        lambda batches: train(loop.model, batches, loop.loss_fn, loop.optimizer, scaler, case.n, case.max_norm)
    )
    return seen | {"every line is needed": len(order) <= len(ORDER_AMP.solution)}


ORDER_AMP = Exercise(
    "order_amp",
    "09_amp",
    watch,
    "GHCEFBIAG",
    cases=CASES,
    edits=[
        *edits("clip-timing", "FB", "BF"),
        *edits("clip-timing/never", "FB", "F"),
        *edits("scaler-timing", "CEFBIA", "CAEFBI", "CEFBAI"),
        *edits("scaler-timing/never", "FBIA", "BDA"),
        *edits("scaler-timing/each", "IA", "I"),
        *edits("scaler-timing/one-unscale", "CEFB", "CFEB"),
    ],
    channels={"every line is needed": "idle-line"},
    takes=str | list | tuple,
)
