"""The table of classic pitfalls: symptom, cause, check and fix, each with a loop of the zoo.

Notebook 11, the sheet for the wall and the site show `PITFALLS`. A check is a number of a run:
`Pitfall.measured()` takes it from the buggy loop and from its fixed twin, so a row holds only if
the two differ.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from course_utils.zoo.registry import ZOO
from gradaudit import audit
from gradaudit.history import AuditedUpdate, History


@dataclass(frozen=True)
class Pitfall:
    """A row of the table. Code in its texts stands between backquotes.

    Attributes:
        specimen: The loop of the zoo that has the bug.
        symptom: What you notice.
        cause: What the code does.
        check: Which number of the run tells.
        fix: What to write instead.
        measure: Takes the number from what the auditor saw of a run.
    """

    specimen: str
    symptom: str
    cause: str
    check: str
    fix: str
    measure: Callable[[History], float]

    def measured(self) -> tuple[float, float]:
        """The number of the buggy loop and that of its fixed twin, to four digits."""
        return self._number(ZOO[self.specimen].buggy), self._number(ZOO[self.specimen].fixed)

    def _number(self, loop: Callable[[], object]) -> float:
        with warnings.catch_warnings(), audit() as report:
            warnings.filterwarnings("ignore", message="Detected call")  # of the schedule
            loop()
        return float(f"{self.measure(report.history):.4g}")

    def row(self) -> tuple[str, str, str, str]:
        """Symptom, cause, check with both numbers, and fix, for paper and for the site."""
        buggy, fixed = self.measured()
        return self.symptom, self.cause, f"{self.check}: {buggy:g}, fixed {fixed:g}", self.fix


def _factors(update: AuditedUpdate) -> float:
    """The sum of what the losses of a window were multiplied by."""
    return sum(term.coefficient for call in update.calls for term in call.terms)


def _heaviest_by_lightest(update: AuditedUpdate) -> float:
    """How much more one target of a window counts than another."""
    weights = [term.per_item for call in update.calls for term in call.terms]
    return max(weights) / min(weights)


PITFALLS = (
    Pitfall(
        "never-zeroed",
        "Diverges at a usual learning rate; at a tiny one learns faster.",
        "Nothing calls `zero_grad()`.",
        "micro-batches in the last update",
        "Zero after every step.",
        lambda run: run.updates[-1].held,
    ),
    Pitfall(
        "zeroed-before-the-step",
        "No weight moves.",
        "`zero_grad()` between `backward()` and `step()`.",
        "micro-batches in the first update",
        "`backward()`, `step()`, `zero_grad()`.",
        lambda run: run.updates[0].held,
    ),
    Pitfall(
        "zeroed-in-every-micro-batch",
        "Learns slowly, whatever N is.",
        "`zero_grad()` before every `backward()` of a window.",
        "micro-batches in the first update",
        "Zero once per window.",
        lambda run: run.updates[0].held,
    ),
    Pitfall(
        "never-divided",
        "Gradient norm and best learning rate depend on N.",
        "N mean losses are added up.",
        "sum of the first window's factors",
        "Divide each loss by the window's micro-batches.",
        lambda run: _factors(run.updates[0]),
    ),
    Pitfall(
        "step-at-batch-zero",
        "The first update comes early: windows of 1, N, N.",
        "`i % N == 0`, with `i` from 0.",
        "micro-batches in the first update",
        "`(i + 1) % N == 0`, or loop over windows.",
        lambda run: run.updates[0].held,
    ),
    Pitfall(
        "tail-never-used",
        "Fewer updates than micro-batches / N, rounded up.",
        "No step after a short last window.",
        "micro-batches in no update",
        "One more update at the end.",
        lambda run: len(run.ledgers[0].left_over),
    ),
    Pitfall(
        "tail-divided-by-n",
        "The last update of each epoch is too small.",
        "A short window is divided by N.",
        "sum of the last window's factors",
        "Divide by what the window holds.",
        lambda run: _factors(run.updates[-1]),
    ),
    Pitfall(
        "mean-of-means",
        "The loss looks right; short sequences count more.",
        "Each loss is the mean over its own tokens.",
        "heaviest token / lightest token",
        "Multiply it by its tokens over the window's.",
        lambda run: _heaviest_by_lightest(run.updates[0]),
    ),
    Pitfall(
        "clipped-in-every-micro-batch",
        "N norms are logged per update.",
        "Clips after every `backward()` of a window.",
        "clips per update",
        "Clip once, after the last `backward()`.",
        lambda run: len(run.updates[0].clips),
    ),
    Pitfall(
        "clipped-before-unscale",
        "With a scaler and SGD, the model hardly learns.",
        "Clips while `.grad` holds the scale.",
        "scale in `.grad` when it is clipped",
        "`unscale_()`, then clip.",
        lambda run: run.updates[0].clips[0].scaled,
    ),
    Pitfall(
        "unscaled-in-every-micro-batch",
        "With a scaler, early micro-batches hardly count.",
        "`unscale_()`, `update()` after every `backward()`.",
        "calls of `unscale_()` per update",
        "Both once per window.",
        lambda run: len(run.updates[0].unscaled_after),
    ),
    Pitfall(
        "warmup-in-micro-batches",
        "The warm-up ends N times too early.",
        "`scheduler.step()` in every micro-batch.",
        "calls of `scheduler.step()` per update",
        "Step the scheduler after an update.",
        lambda run: len(run.updates[1].scheduled + run.updates[1].scheduled_after),
    ),
    Pitfall(
        "one-backward-per-window",
        "Memory grows with N.",
        "Losses are added up, then one `backward()`.",
        "forward passes per `backward()`",
        "`backward()` on each loss; log `loss.item()`.",
        lambda run: run.calls[0].graphs,
    ),
)
