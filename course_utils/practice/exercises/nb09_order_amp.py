"""The exercise of notebook 09 that puts the calls of a window under a GradScaler in order."""

from collections.abc import Sequence
from math import inf

from course_utils.practice.bench import Exercise, Seen, agree, edits
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


def watch(answer: str | Sequence[str], case: Case | None) -> Seen:
    """Runs the loop that an order makes; without a case, looks for lines that it could do without."""
    order = letters(answer, LINES)
    if case is None:
        idle = [letter for place, letter in enumerate(order) if _passes(order[:place] + order[place + 1 :])]
        return {"lines without which every update is the same": idle}
    require_one_loop(order, LINES)
    train, loop, scaler = assemble(HEADER, LINES, order, {"i": "H", "batch": "H"}), Loop(case), scaler_for(case)
    return loop.run(
        lambda batches: train(loop.model, batches, loop.loss_fn, loop.optimizer, scaler, case.n, case.max_norm)
    )


def _passes(order: str) -> bool:
    try:
        return all(agree([*watch(order, case).values()], [*ORDER_AMP.seen_of(None, case).values()]) for case in CASES)
    except Exception:  # without this line it is no loop at all
        return False


ORDER_AMP = Exercise(
    "order_amp",
    "09_amp",
    watch,
    "GHCEFBIAG",
    cases=[*CASES, None],
    edits=[
        *edits("stale-gradients", "AG", "A"),
        *edits("stale-gradients/first", "GHC", "HC"),
        *edits("scaler-timing", "CEFBIA", "CAEFBI", "CEFBAI"),
        *edits("discarded-gradients", "HCE", "HGCE", "HCGE"),
        *edits("clip-timing", "FB", "BF", "B"),
        *edits("clip-timing/never", "FB", "F"),
        *edits("clip-timing/between", "CEFB", "CBEF"),
        *edits("scaler-timing/never", "FBIA", "BDA", "D"),
        *edits("scaler-timing/each", "IA", "I"),
        *edits("scaler-timing/one-unscale", "CEFB", "CFEB", "FCEB"),
        *edits("unguarded-step", "I", "D"),
    ],
    channels={"lines without which every update is the same": "idle-line"},
    build=str,
    takes=(str, list, tuple),
)
