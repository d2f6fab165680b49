"""The table of classic pitfalls: symptom, cause, check and fix, each with a loop of the zoo.

Notebook 11, the sheet for the wall and the site show `PITFALLS`. A check is a number of a run:
`Pitfall.measured()` takes it from the buggy loop and from its fixed twin, so a row holds only if
the two differ.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils.record import Trace, record
from course_utils.zoo.registry import ZOO
from gradaudit import audit
from gradaudit.history import AuditedUpdate, Term


class Run(NamedTuple):
    """A loop as its trace and the auditor's ledger show it.

    Attributes:
        trace: What happened, in order.
        updates: The updates of the loop's optimizer, with the losses of their windows.
        rates: The learning rate of each update.
    """

    trace: Trace
    updates: list[AuditedUpdate]
    rates: list[float]

    def losses(self, update: int) -> list[Term]:
        """The losses of a window, each with its coefficient and the number of its targets."""
        return [term for call in self.updates[update].calls for term in call.terms]

    def sum_of_factors(self, update: int) -> float:
        """The sum of what the losses of a window were multiplied by."""
        return sum(term.coefficient for term in self.losses(update))

    def per_update(self, kind: str) -> float:
        """The number of events of this kind for each update."""
        return sum(event.kind == kind for event in self.trace.on()) / len(self.updates)


@dataclass(frozen=True)
class Pitfall:
    """A row of the table. Code in its texts stands between backquotes.

    Attributes:
        specimen: The loop of the zoo that has the bug.
        symptom: What you notice.
        cause: What the code does.
        check: Which number of the run tells.
        fix: What to write instead.
        measure: Takes the number from a run.
    """

    specimen: str
    symptom: str
    cause: str
    check: str
    fix: str
    measure: Callable[[Run], float]

    def measured(self) -> tuple[float, float]:
        """The number of the buggy loop and that of its fixed twin, to three digits."""
        loops = ZOO[self.specimen].buggy, ZOO[self.specimen].fixed
        buggy, fixed = (float(f"{self.measure(watch(loop)):.3g}") for loop in loops)
        return buggy, fixed

    def row(self) -> tuple[str, str, str, str]:
        """Symptom, cause, check with both numbers, and fix, for paper and for the site."""
        buggy, fixed = self.measured()
        return self.symptom, self.cause, f"{self.check}: {buggy:g}, fixed {fixed:g}", self.fix


def watch(loop: Callable[[], object]) -> Run:
    """Runs a loop of the zoo and measures it."""
    rates = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    try:
        with warnings.catch_warnings(), record() as trace, audit() as report:
            warnings.filterwarnings("ignore", message="Detected call")  # PyTorch's own, of the schedule
            loop()
    finally:
        handle.remove()
    return Run(trace, report.history.updates, rates)


def _heaviest_by_lightest(losses: list[Term]) -> float:
    """How much more one target counts than another."""
    weights = [term.per_item for term in losses]
    return max(weights) / min(weights)


PITFALLS = (
    Pitfall(
        "never-zeroed",
        "Diverges at a usual learning rate; at a tiny one learns faster.",
        "Nothing calls `zero_grad()`.",
        "micro-batches in the last update",
        "Zero after every step.",
        lambda run: run.trace.windows()[-1],
    ),
    Pitfall(
        "zeroed-before-the-step",
        "No weight moves.",
        "`zero_grad()` between `backward()` and `step()`.",
        "micro-batches in the first update",
        "`backward()`, `step()`, `zero_grad()`.",
        lambda run: run.trace.windows()[0],
    ),
    Pitfall(
        "zeroed-in-every-micro-batch",
        "Learns slowly, whatever N is.",
        "`zero_grad()` before every `backward()` of a window.",
        "micro-batches in the first update",
        "Zero once per window.",
        lambda run: run.trace.windows()[0],
    ),
    Pitfall(
        "never-divided",
        "Gradient norm and best learning rate depend on N.",
        "N mean losses are added up.",
        "sum of the first window's factors",
        "Divide each loss by the window's micro-batches.",
        lambda run: run.sum_of_factors(0),
    ),
    Pitfall(
        "step-at-batch-zero",
        "The first update comes early: windows of 1, N, N.",
        "`i % N == 0`, with `i` from 0.",
        "micro-batches in the first update",
        "`(i + 1) % N == 0`, or loop over windows.",
        lambda run: run.trace.windows()[0],
    ),
    Pitfall(
        "tail-never-used",
        "Fewer updates than micro-batches / N, rounded up.",
        "No step after a short last window.",
        "micro-batches in no update",
        "One more update at the end.",
        lambda run: run.trace.leftover(),
    ),
    Pitfall(
        "tail-divided-by-n",
        "The last update of each epoch is too small.",
        "A short window is divided by N.",
        "sum of the last window's factors",
        "Divide by what the window holds.",
        lambda run: run.sum_of_factors(-1),
    ),
    Pitfall(
        "mean-of-means",
        "The loss looks right; short sequences count more.",
        "Each loss is the mean over its own tokens.",
        "heaviest token / lightest token",
        "Multiply it by its tokens over the window's.",
        lambda run: _heaviest_by_lightest(run.losses(0)),
    ),
    Pitfall(
        "clipped-in-every-micro-batch",
        "N norms are logged per update.",
        "Clips after every `backward()` of a window.",
        "clips per update",
        "Clip once, after the last `backward()`.",
        lambda run: run.per_update("change"),
    ),
    Pitfall(
        "clipped-before-unscale",
        "With a scaler and SGD, the model hardly learns.",
        "Clips while `.grad` holds the scale.",
        "norm that the step used / `max_norm`",
        "`unscale_()`, then clip.",
        lambda run: max(event.norm for event in run.trace.on() if event.kind == "step") / 0.1,
    ),
    Pitfall(
        "unscaled-in-every-micro-batch",
        "With a scaler, early micro-batches hardly count.",
        "`unscale_()`, `update()` after every `backward()`.",
        "calls of `unscale_()` per update",
        "Both once per window.",
        lambda run: sum(len(update.unscaled_after) for update in run.updates) / len(run.updates),
    ),
    Pitfall(
        "warmup-in-micro-batches",
        "The warm-up ends N times too early.",
        "`scheduler.step()` in every micro-batch.",
        "updates below the full learning rate",
        "Step the scheduler after an update.",
        lambda run: sum(rate < max(run.rates) for rate in run.rates),
    ),
    Pitfall(
        "one-backward-per-window",
        "Memory grows with N.",
        "Losses are added up, then one `backward()`.",
        "losses per `backward()`",
        "`backward()` on each loss; log `loss.item()`.",
        lambda run: len(run.losses(0)) / len(run.updates[0].calls),
    ),
)
