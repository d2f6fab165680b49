"""What is said of each kind of difference, with its numbers.

In a message `{window:micro-batch}` is a number with its noun, `{counts:g}` a list of which the first numbers are shown,
`{name}` the optimizer and `{made}` how many updates it has made.
"""

from string import Formatter
from typing import Any, NamedTuple

from gradaudit.compare import Difference
from gradaudit.history import count_noun

ERROR, ADVICE, UNDECIDED = LEVELS = ("error", "advice", "undecided")
_SHOWN = 6  # numbers of a list


class Kind(NamedTuple):
    """What is said of a kind of difference.

    Attributes:
        message: What was observed.
        fix: What to change; None if what its rule says is all there is to it, "" if nothing is certain.
        level: What it is if nothing speaks for it.
    """

    message: str
    fix: str | None = None
    level: str = ERROR


_DO_SO = "{updates_affected} of {made:update} do so"
_AGAIN = "update {update} used the gradients of {again:backward call} that an earlier step had already used"
_HOLDS = "update {update} holds {held:micro-batch}, {why}: {listed}"
_LAST = "the gradients of the last {backward_calls:backward call} of the run were never used by a step"
_COUNT = ": let its condition count micro-batches; a count of updates stands still as soon as no update is made"
_SKIP = "skip the step of a window that holds nothing: momentum and weight decay move the weights all the same"
_NONE = "{found} of {steps:step} found no gradient"
_NEVER = "{without_gradient} of its {parameters:parameter} never received a gradient"
_FROZEN = "all of its parameters are frozen and none ever received a gradient"
_WHILE = ", while {unowned_with_gradient:parameter} that no optimizer holds did"
_TOGETHER = (
    "one backward call went through {graphs} forward passes that have nothing in common: the activations of all of "
)

KINDS = {
    # stale-gradients
    "stale": Kind(f"{_AGAIN}; {_DO_SO}"),
    "stale, two steps": Kind(f"{_AGAIN} (no backward came between two steps); {_DO_SO}"),
    "stale, given": Kind(
        f"{_AGAIN}; {_DO_SO}",
        "zero the model whose gradients are given to {taker}: zero_grad() of {taker} clears only its own",
    ),
    "stale in part": Kind(
        "update {update} also used what an earlier step had used in {stale_parameters} of its {parameters:parameter}"
        f"{{names}}: only the others were zeroed; {_DO_SO}",
        "zero all that the optimizer holds: optimizer.zero_grad()",
    ),
    "reused": Kind(
        "update {update} used gradients that were put into .grad before an earlier step, which had already used them; "
        f"{_DO_SO}",
        "put new gradients into .grad before each step, and set it to None after the step",
    ),
    "from before": Kind(
        "update {update} also holds the gradients of a backward call from before the loop",
        "zero once before the first window, too",
    ),
    # discarded-gradients
    "discarded": Kind(
        "the gradients of {discarded} of {backward_calls:backward call} were zeroed before any step used them"
    ),
    "overwritten": Kind(
        "backward call {first} brought the gradients of {overwritten:parameter} in the memory in which .grad lay "
        "already: it had overwritten the sum that it was then added to",
        "zero with set_to_none=False, so that .grad keeps memory of its own, and fill .grad with zeros before the first "
        "window; CUDA graphs (as in torch.compile's max-autotune) write every gradient to the same place",
    ),
    # empty-step
    "empty": Kind(f"{_NONE} at all"),
    "empty, zeros": Kind(f"{_NONE} other than zeros", _SKIP),
    "empty, masked": Kind(f"{_NONE} other than zeros, as from a loss without a target", _SKIP),
    "empty at first": Kind("the first of {steps:step} found no gradient", "", ADVICE),
    # foreign-gradients
    "foreign": Kind(
        "update {update} holds {foreign:backward call} of the loss of {other} in addition to its own; {updates} of "
        "{made:update} do",
        "zero the parameters of {name} before its own backward, or freeze them during that of {other}",
    ),
    # orphan-parameters
    "orphans": Kind(_NEVER, ""),
    "orphans, others trained": Kind(f"{_NEVER}{_WHILE}"),
    "orphans, frozen": Kind(_FROZEN, "", ADVICE),
    "orphans, frozen, others trained": Kind(f"{_FROZEN}{_WHILE}"),
    "orphans in part": Kind(_NEVER, "", ADVICE),
    "unowned": Kind(
        "no optimizer holds {unowned_with_gradient:parameter} that received gradients",
        "give them to an optimizer, or freeze them with requires_grad_(False), which saves memory",
        ADVICE,
    ),
    # irregular-window
    "not as declared": Kind(_HOLDS),
    "off by one": Kind(_HOLDS),
    "first": Kind(_HOLDS),
    "pattern": Kind(_HOLDS),
    "long": Kind(_HOLDS, "count only micro-batches that ran backward, and let no `continue` jump over the step"),
    "divided for nothing": Kind(
        "every loss is multiplied by 1/{n}, and every micro-batch has its own step; was a window of {n} intended?",
        "step after every {n} micro-batches, or do not divide; --window {n} decides it",
    ),
    # leftover-gradients
    "left over": Kind(_LAST),
    "left over, one step": Kind(_LAST, f"line {{line}} is the only step{_COUNT}"),
    "left over, stopped": Kind(_LAST, f"line {{line}} made the last of {{made}} steps long before the end{_COUNT}"),
    "carried over": Kind(
        "update {update} holds {size:micro-batch}, {more} more than the windows inside an epoch: they were left over "
        "from the epoch before"
    ),
    "carried over, apparently": Kind(
        "update {update} holds {size:micro-batch}, those around it {usual}: {more} were left over, apparently from the "
        "end of an epoch"
    ),
    # loss-scale
    "undivided": Kind(
        "the mean loss of each of {window:micro-batch} counts in full, so every update is {factor:.1f} times too large"
    ),
    "only weighed": Kind(
        "nothing divides the losses of {window:micro-batch}: the mean of each is multiplied by {times} alone, so every "
        "update is {window} times too large"
    ),
    "average undivided": Kind(
        "the weights of the {losses} losses of a micro-batch add up to 1, and nothing divides them by {window}, so "
        "every update is {window} times too large"
    ),
    "twice": Kind("the loss is divided by {window} twice, so every update is {window} times too small", "divide once"),
    "tail": Kind(
        "a short window of {short_window:micro-batch} is divided by {window}, so its update is {factor:.2f} of its own "
        "mean gradient",
        "divide by what the window holds",
    ),
    # token-weights
    "uneven": Kind(
        "micro-batches of {counts:g} samples or tokens count alike, so that one of them counts {weights:.2g} times "
        "what it should"
    ),
    "means of ranks": Kind(
        "this rank takes means over {counts:g} samples or tokens, and the ranks' means are averaged",
        "divide by the count of all ranks, and multiply by the number of ranks",
    ),
    # unused-loss
    "unused": Kind(
        "the loss {loss} is computed with a graph, and no backward call ever reaches it; it was there before "
        "{updates:update} that were looked at",
        "",
        ADVICE,
    ),
    # clip-timing
    "clip late": Kind("gradients are clipped after the step, when they have been used"),
    "clip early": Kind("gradients are clipped before the backward, when there is none"),
    "clip scaled": Kind("gradients are clipped before unscale_(), while they hold the scaler's factor of {scale:g}"),
    "clip inside": Kind("gradients are clipped after backward call {after_backward_calls} of a window of {window}"),
    # scaler-timing
    "unscaled early": Kind(
        "unscale_() came after backward call {after} of a window of {window}, so that gradients with and without the "
        "scaler's factor are added"
    ),
    "updated early": Kind(
        "the scaler was updated after backward call {updated_after} of a window of {window}, before the step"
    ),
    "several scalers": Kind("{scalers} different scalers were used, so what they learn about the scale is lost"),
    # scheduler-cadence
    "stepped inside": Kind(
        "the scheduler was stepped inside windows: {scheduler_steps:time} in {updates:update}{ended}"
    ),
    "stepped after a skip": Kind(
        "the scheduler was stepped after {skipped_and_stepped:update} that the scaler had skipped"
    ),
    "too long": Kind(
        "the scheduler's length is that of the run in micro-batches, {length}, and it was stepped once per update, "
        "{scheduler_steps:time}: it would come to its end {window} times too late"
    ),
    # sync-cadence
    "apart": Kind(
        "{ranks}{not_averaged} of {updates:update} come before the last micro-batch is averaged over the ranks, so "
        "that the ranks drift apart"
    ),
    "late no_sync": Kind(
        "{averaged_under_no_sync:backward call} ran under no_sync() without effect: DDP decides in the forward pass, "
        "which ran outside it, whether to exchange gradients",
        "put the forward pass of each of these micro-batches inside no_sync(), too",
        ADVICE,
    ),
    "often": Kind(
        "the ranks exchange gradients after each of {window} micro-batches; once per update is enough", level=ADVICE
    ),
    # held-graphs
    "counted again": Kind(
        "{calls:backward call} went through a loss that an earlier call of the same window had gone through: its graph "
        "is kept, and its gradient counts once for every call",
        "call backward on each loss once, and detach() what is added up for the log",
    ),
    "carried graph": Kind(
        "backward call {backward_call} also went back through what was computed before each of {earlier} earlier "
        "calls: a tensor is carried over with its graph, such as a hidden state",
        "detach() what is carried over, or add the losses up and call backward once at the end",
        ADVICE,
    ),
    "kept losses": Kind(
        "the graphs of {roughly}{graphs_alive} earlier losses were still alive at backward call {backward_call}: "
        "something keeps the losses themselves, such as a sum for the log",
        "add up loss.item() or loss.detach()",
        ADVICE,
    ),
    "kept parts": Kind(
        "the graphs of {graphs_alive} earlier forward passes were still alive at backward call {backward_call}: "
        "something keeps tensors of them, such as a list of outputs or features",
        "detach() what is collected",
        ADVICE,
    ),
    "one call for several": Kind(f"{_TOGETHER}them were in memory at once", level=ADVICE),
    "one call for tasks": Kind(f"{_TOGETHER}them were in memory at once", "", ADVICE),
    # batchnorm, low-precision-accumulation
    "batchnorm": Kind(
        "BatchNorm layers train in windows of {window:micro-batch}: each is normalised by itself, and the running "
        "statistics move {moves_per_update} times per update",
        level=ADVICE,
    ),
    "low precision": Kind("{window:micro-batch} are added up in {dtype}: small addends are lost", level=ADVICE),
}


class _Numbers(Formatter):
    """Lists, and numbers with their nouns."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, list):
            return ", ".join(format(each, spec) for each in value[:_SHOWN])
        if isinstance(value, int) and spec and spec[-1].isalpha() and len(spec) > 1 and spec[0] != ".":
            return count_noun(value, spec)
        return super().format_field(value, spec)


def said(text: str, difference: Difference) -> str:
    """A message or a fix with the numbers of a difference."""
    record = difference.record
    optimizer = {} if record is None else {"name": record.name, "made": record.made}
    return _Numbers().vformat(text, (), optimizer | difference.evidence)
