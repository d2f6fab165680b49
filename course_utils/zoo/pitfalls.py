"""The table of pitfalls: symptom, cause, check and fix, each with a loop and its fixed twin.

Notebook 11, the sheet for the wall and the site show `PITFALLS`. A check is a number of a run:
`Pitfall.measured()` takes it from the buggy loop and from its fixed twin, so a row holds only if
the two differ. Four loops aren't listed in the zoo: two of them break no rule of the auditor's.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

from course_utils.zoo import models, timing, windows, zeroing
from course_utils.zoo.registry import Specimen
from gradaudit import audit
from gradaudit.history import AuditedUpdate, History


class Pitfall(NamedTuple):
    """The row of a specimen. Code in its texts stands between backquotes.

    Attributes:
        symptom: What you notice.
        code: What the code does, and what to write instead.
        check: Which number of the run tells, and what takes it from what the auditor saw; None if
            the loop logs it.
    """

    symptom: str
    code: tuple[str, str]
    check: tuple[str, Callable[[History], float] | None]

    def measured(self, specimen: Specimen) -> tuple[float, float]:
        """The number of the buggy loop and that of its fixed twin, to four digits."""
        return self._number(specimen.buggy), self._number(specimen.fixed)

    def _number(self, loop: Callable[[], list[float]]) -> float:
        # PyTorch warns of the schedule, the generator and the checkpoint.
        with warnings.catch_warnings(action="ignore"), audit() as report:
            log = loop()
        _, take = self.check
        return float(f"{take(report.history) if take else log[-1]:.4g}")

    def row(self, specimen: Specimen) -> tuple[str, str, str, str]:
        """Symptom, cause, check with the number of the buggy loop and of its twin, and fix."""
        (cause, fix), (buggy, fixed) = self.code, self.measured(specimen)
        return self.symptom, cause, f"{self.check[0]}: {buggy:g} → {fixed:g}", fix


def _factors(update: AuditedUpdate) -> float:
    """The sum of what the losses of a window were multiplied by."""
    return sum(term.coefficient for call in update.calls for term in call.terms)


def _schedule_steps(update: AuditedUpdate) -> int:
    return len(update.scheduled + update.scheduled_after)


def _heaviest_by_lightest(update: AuditedUpdate) -> float:
    """How much more one target of a window counts than another."""
    weights = [term.per_item for call in update.calls for term in call.terms]
    return max(weights) / min(weights)


PITFALLS = {
    zeroing.never_zeroed: Pitfall(
        "The loss diverges; at a tiny learning rate it falls faster.",
        ("Nothing calls `zero_grad()`.", "Zero after every step."),
        ("micro-batches in the last update", lambda run: run.updates[-1].held),
    ),
    zeroing.zeroed_before_the_step: Pitfall(
        "No weight moves.",
        (
            "`zero_grad()` comes right before `step()`.",
            "Call `backward()`, `step()`, `zero_grad()`.",
        ),
        ("micro-batches in update 1", lambda run: run.updates[0].held),
    ),
    zeroing.zeroed_in_every_micro_batch: Pitfall(
        "The model learns slowly, whatever N is.",
        ("`zero_grad()` comes before every `backward()`.", "Zero once per window."),
        ("micro-batches in update 1", lambda run: run.updates[0].held),
    ),
    windows.never_divided: Pitfall(
        "The gradient's norm grows with N.",
        ("N mean losses are added up.", "Divide by what the window holds."),
        ("sum of a window's factors", lambda run: _factors(run.updates[0])),
    ),
    windows.step_at_batch_zero: Pitfall(
        "The first update comes early.",
        ("The test `i % N == 0` counts `i` from 0.", "Loop over windows."),
        ("micro-batches in update 1", lambda run: run.updates[0].held),
    ),
    windows.tail_never_used: Pitfall(
        "Each epoch makes one update too few.",
        ("A short window gets no step.", "Loop over windows."),
        ("micro-batches in no update", lambda run: len(run.ledgers[0].left_over)),
    ),
    windows.tail_divided_by_n: Pitfall(
        "Each epoch's last update is small.",
        ("A short window is divided by N.", "Divide by `len(window)`."),
        ("sum of the last window's factors", lambda run: _factors(run.updates[-1])),
    ),
    windows.mean_of_means: Pitfall(
        "The loss looks right; short sequences count more.",
        ("Each loss is a mean over its tokens.", "Multiply it by its share of the window's tokens."),
        ("heaviest token / lightest token", lambda run: _heaviest_by_lightest(run.updates[0])),
    ),
    windows.backward_in_validation: Pitfall(
        "The first update after validation is large.",
        ("Validation calls `backward()`.", "Validate under `no_grad()`."),
        ("`backward()` calls in that update", lambda run: max(update.held for update in run.updates)),
    ),
    timing.clipped_in_every_micro_batch: Pitfall(
        "N norms are logged per update.",
        ("The loop clips after every `backward()`.", "Clip once per window."),
        ("clips per update", lambda run: len(run.updates[0].clips)),
    ),
    timing.clipped_after_the_step: Pitfall(
        "Spikes get through.",
        ("The loop clips after `step()`.", "Clip right before `step()`."),
        ("clips before step 1", lambda run: sum(not clip.late for clip in run.updates[0].clips)),
    ),
    timing.clipped_once: Pitfall(
        "The logged norms become 0.",
        ("The first clip uses up a generator of parameters.", "Keep a list."),
        ("clips in update 2", lambda run: sum(clip.tensors > 0 for clip in run.updates[1].clips)),
    ),
    timing.clipped_before_unscale: Pitfall(
        "With a scaler and SGD, the model hardly learns.",
        ("The loop clips scaled gradients.", "Call `unscale_()`, then clip."),
        ("scale in `.grad` at the clip", lambda run: run.updates[0].clips[0].scaled),
    ),
    timing.unscaled_in_every_micro_batch: Pitfall(
        "With a scaler, early micro-batches hardly count.",
        ("`unscale_()` and `update()` come after every `backward()`.", "Call both once per window."),
        ("`unscale_()` calls per update", lambda run: len(run.updates[0].unscaled_after)),
    ),
    timing.warmup_in_micro_batches: Pitfall(
        "The warm-up ends N times too early.",
        ("`scheduler.step()` comes in every micro-batch.", "Call it after an update."),
        ("`scheduler.step()` calls per update", lambda run: _schedule_steps(run.updates[1])),
    ),
    timing.averaged_in_every_micro_batch: Pitfall(
        "The weights' moving average (EMA) forgets too fast.",
        ("The loop averages in every micro-batch.", "Average after an update."),
        ("averagings per update", None),
    ),
    models.optimizer_before_wrapping: Pitfall(
        "No weight moves, but `.grad` fills.",
        ("The optimizer has an earlier model's parameters.", "Create it after wrapping the model."),
        ("micro-batches in update 1", lambda run: run.updates[0].held),
    ),
    models.checkpointed_after_frozen: Pitfall(
        "Some layers never learn.",
        ("Checkpointing after frozen layers is reentrant.", "Pass `use_reentrant=False`."),
        ("parameters without a gradient", lambda run: sum(run.ledgers[0].never.values())),
    ),
    models.one_backward_per_window: Pitfall(
        "Memory grows with N.",
        ("`backward()` runs once per window.", "Call `backward()` on each loss; log `loss.item()`."),
        ("forward passes per `backward()`", lambda run: run.calls[0].graphs),
    ),
}
