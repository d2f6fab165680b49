"""The fix for the case at hand: what exactly was done, and in whose loop it was done, say more than the rule can."""

from collections.abc import Callable
from dataclasses import replace

from gradaudit.callsite import short
from gradaudit.history import AuditedUpdate, History
from gradaudit.rules.registry import ERROR, Finding
from gradaudit.rules.terms import DIVIDE_ONCE

_COUNT_TOKENS = (
    "divide the sum over tokens by num_items_in_batch, which the Trainer passes to forward() or compute_loss()"
)
_TRANSFORMERS = {
    "undivided": "the Trainer doesn't divide for a model whose forward() takes **kwargs: use num_items_in_batch in its "
    "loss, or set model.accepts_loss_kwargs = False",
    "divided twice": "the Trainer divides by gradient_accumulation_steps itself: return the plain mean from forward() "
    "or compute_loss()",
    "tail": f"{_COUNT_TOKENS}: it counts what a short window really holds",
    "token-weights": f"{_COUNT_TOKENS}: it is the count of the whole window",
    "means of ranks": "pass TrainingArguments(average_tokens_across_devices=True): num_items_in_batch then counts the "
    "tokens of all ranks",
}
_PREPARE = (
    "pass the optimizer through accelerator.prepare(): its step() and zero_grad() inside accelerator.accumulate() then "
    "wait for the end of the window"
)
_FRAMEWORK_FIXES = {
    "accelerate": {
        "undivided": "pass Accelerator(gradient_accumulation_steps={n}): accelerator.backward() then divides",
        "divided twice": "accelerator.backward() divides by gradient_accumulation_steps itself: pass it the plain mean",
        "tail": "accelerator.backward() always divides by gradient_accumulation_steps: in a short window multiply the "
        "loss by gradient_accumulation_steps over the micro-batches that it holds",
        "token-weights": "count num_items_in_batch over the window and all ranks, and pass accelerator.backward() the "
        "sum over tokens * gradient_accumulation_steps * accelerator.num_processes / num_items_in_batch",
        "irregular-window": "pass Accelerator(gradient_accumulation_steps={n}), and put each micro-batch into "
        "`with accelerator.accumulate(model):`, which counts",
        "leftover-gradients": "pass the data loader through accelerator.prepare(), and put each micro-batch into "
        "`with accelerator.accumulate(model):`, which also steps at the end of the data",
        "discarded-gradients": _PREPARE,
        "divided, not accumulated": _PREPARE,
        "clip-timing": "clip under `if accelerator.sync_gradients:`, with accelerator.clip_grad_norm_()",
        "scheduler-cadence": "pass the scheduler through accelerator.prepare(), which steps it with the optimizer",
    },
    "lightning": {
        "undivided": "with manual optimization Lightning divides nothing: self.manual_backward(loss / {n}), or use "
        "automatic optimization and Trainer(accumulate_grad_batches={n})",
        "divided twice": "Trainer(accumulate_grad_batches={n}) divides the loss itself: return the plain mean from "
        "training_step()",
        "tail": "the Trainer always divides by accumulate_grad_batches: pass a multiple of it as "
        "Trainer(limit_train_batches=), or multiply a short window's losses by accumulate_grad_batches over the "
        "micro-batches that it holds",
        "token-weights": "return the sum over tokens * accumulate_grad_batches / the tokens of the window from "
        "training_step(); the window's tokens must be counted beforehand",
        "irregular-window": "step if (batch_idx + 1) % {n} == 0 or self.trainer.is_last_batch, or use automatic "
        "optimization and Trainer(accumulate_grad_batches={n})",
        "leftover-gradients": "with manual optimization, also step if self.trainer.is_last_batch",
        "foreign-gradients": "call self.toggle_optimizer(optimizer) before each optimizer's forward pass and "
        "self.untoggle_optimizer(optimizer) after its step: the other's parameters then receive nothing",
    },
    "fabric": {
        "undivided": "fabric.backward() divides nothing: pass it loss / {n}",
        "irregular-window": "count from 1: is_accumulating = (iteration + 1) % {n} != 0",
    },
    "transformers": _TRANSFORMERS,
    "trl": _TRANSFORMERS,
}


def by_cause(finding: Finding, history: History) -> Finding:
    """The finding with the most specific fix that is known for it."""
    find = _CAUSES.get(finding.rule)
    fix = (find(finding, history) if find else "") or _of_framework(finding, history)
    return replace(finding, fix=fix) if fix else finding


def _of_framework(finding: Finding, history: History) -> str:
    fixes = _FRAMEWORK_FIXES.get(_framework(finding, history), {})
    return fixes.get(_case(finding), "").format(n=max(2, history.size(_record(finding, history)) if finding.lane else 0))


def _record(finding, history):
    return next((record for record in history.records if record.name == finding.lane), None)


def _framework(finding: Finding, history: History) -> str:
    """Whose loop it is: that of the line, or else of the lane's backward calls."""
    calls = history.calls_of(_record(finding, history))
    places = [finding.where, *(call.where for call in calls)]
    return next((name for name in (getattr(place, "framework", "") for place in places) if name), "")


def _case(finding: Finding) -> str:
    """What a finding is about, where its rule knows several cases."""
    evidence = finding.evidence
    if finding.rule == "loss-scale" and finding.level == ERROR:
        twice = finding.fix == DIVIDE_ONCE
        return "tail" if "short_window" in evidence else "divided twice" if twice else "undivided"
    if finding.rule == "irregular-window" and "coefficient" in evidence:
        return "divided, not accumulated"
    if finding.rule == "token-weights" and "weights" not in evidence:
        return "means of ranks"
    return finding.rule if finding.level == ERROR else ""


# What was done


def _two_steps_in_a_row(finding: Finding, history: History) -> str:
    """The second of two steps found what the first had used, or nothing if it was zeroed between them."""
    windows = _record(finding, history).updates
    places = {window.number: k for k, window in enumerate(windows)}
    k = places[finding.evidence["update"]]
    if not k or not _nothing_new(windows[k]) or not windows[k - 1].fresh:
        return ""
    first, second = (_place(window.where, finding) for window in windows[k - 1 : k + 1])
    if first == second:
        return f"{second} steps twice with no backward between: let it step only after a backward"
    return f"two steps follow each other, at {first} and {second}: remove one of them"


def _nothing_new(window: AuditedUpdate) -> bool:
    return not (window.fresh or window.assigned or window.skipped or window.came_as_zeros)


def _place(where: str, finding: Finding) -> str:
    """The line alone, if the file is the one that the finding names."""
    file, _, line = where.rpartition(":")
    return f"line {line}" if file == finding.where.rpartition(":")[0] else short(where)


def _one_update(finding: Finding, history: History) -> str:
    """Most of the run was never used: it is no tail that is lost, the steps have stopped."""
    record = _record(finding, history)
    windows, left = record.updates, len(record.left_over)
    calls = len(history.calls_of(record))
    if finding.level != ERROR or not windows or left <= 2 * history.size(record) or left < calls / 2:
        return ""
    steps = "is the only step" if len(windows) == 1 else f"made the last of {len(windows)} steps long before the end"
    return (
        f"{_place(windows[-1].where, finding)} {steps}: let its condition count micro-batches, as in (i + 1) % n == 0; "
        "a count of updates stands still as soon as no update is made"
    )


_CAUSES: dict[str, Callable[[Finding, History], str]] = {
    "stale-gradients": _two_steps_in_a_row,
    "empty-step": _two_steps_in_a_row,
    "leftover-gradients": _one_update,
}
