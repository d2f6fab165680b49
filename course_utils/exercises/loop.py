"""Watches a training loop: which batches are in each update, and how much each counts.

Every sample has an entry of `.grad` of its own. Each call of the loop gets samples of its own, so
whatever an update holds of another call shows. Every parameter and the memory are compared, too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm, parameters_to_vector

from course_utils.exercises.judging import Mistake, agree, compare, not_attempted, numbers, returned, shown, unchanged
from course_utils.loops import train_epoch
from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp

SCALE = 1024.0  # of a scaler

# Hints.
WHEN = {
    "discarded-gradients": "What runs between this batch's `backward()` and the step?",
    "stale-gradients": "What is in `.grad` when the update's first `backward()` runs, and which line clears it?",
    "missing-backward": "Which calls of `loss_fn` does your loop call `backward()` for?",
    "empty-step": "Which `backward()` should have come before this step? If none, should there be a step?",
    "irregular-window": "How many batches have gone through `backward()` since the last update when your loop steps?",
    "leftover-gradients": "What does your loop do with the batches that come after the last step?",
}
SHARE = "What is each loss divided by, even where fewer than N batches are left?"
WEIGHT = "What fraction of its window's samples, or tokens, is in this batch? Its mean loss should count that much."
LIMIT = "Whose norm should be limited? That of the whole window's gradient, once, before the step."
DIGITS = "Print the dtype of the model, of the loss and of `.grad`. Which line changes it, or rounds?"
GRAPHS = "Only one batch fits into memory: call `backward()` before the next `loss_fn`. Does anything keep the loss?"
ELSE = "What else does your loop do to the model, to `.grad`, or to the optimizer?"


class Case:
    """The data of one run.

    Args:
        *calls: For each call of the loop (an epoch, or a window) the samples of its batches.
        **settings: What else a message says about the case. Each is an attribute.
    """

    old_gradient = False  # whether an earlier backward pass has left something in `.grad`

    def __init__(self, *calls: Sequence[int], **settings: Any):
        self.calls, self.settings = calls, settings
        self.__dict__.update(settings)

    def __str__(self) -> str:
        sizes = dict.fromkeys(str([*call]) for call in self.calls)
        settings = "".join(f", {name} = {shown(value)}" for name, value in self.settings.items())
        settings = settings.replace("old_gradient = True", "`.grad` not empty").replace("spikes =", "gradients times")
        return f"batches of {' and '.join(sizes)} samples{', in two calls' * (len(sizes) < len(self.calls))}{settings}"


def twice(sizes: Sequence[int], **settings: Any) -> Case:
    """Two epochs."""
    return Case(sizes, sizes, **settings)


class Counter(Tally):
    """A perceptron and a tally: each sample's entry of `weight.grad` says how much it counts.

    Args:
        owner: The batch of each sample.
    """

    def __init__(self, owner: Tensor):
        super().__init__(len(owner))
        self.owner, self.ran, self.net = owner, set(), mlp(3, 5, 2)

    def count(self, batch: Tensor) -> Tensor:
        """The entries of these samples, as zeros that notice when a gradient comes back."""
        entries = self.weight[batch]
        if entries.requires_grad:
            entries.register_hook(lambda _: self.ran.update(self.owner[batch].flatten().tolist()))
        return entries - entries.detach()

    def forward(self, batch: Tensor) -> Tensor:
        inputs = torch.sin((batch[:, None] + 1) * torch.arange(1, 4))
        return self.net(inputs).square().sum(1) + self.count(batch)


class Step(NamedTuple):
    """One step of an optimizer."""

    number: int
    call: int  # of the loop, in which it came
    row: Tensor  # how much each sample counts
    norm: float
    ran: set[int]  # the batches through which a gradient had come back


def listed(indices: set[int]) -> str:
    """Batches as messages count them: from 1, over all calls."""
    return shown(["old" if index < 0 else index + 1 for index in sorted(indices)])


class Loop:
    """The model, data and optimizer of a learner's loop, and a record of its updates."""

    name, peak = "", 0  # says of which model, where there are several; bytes that its backward passes need
    late = "leftover-gradients", ""  # the mistake of an update that is never made, and more about it

    def __init__(self, case: Case, model: type[Counter] = Counter):
        sizes = torch.tensor([size for call in case.calls for size in call])
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self.case, self.samples, self.k, self.steps = case, torch.arange(len(owner)), 0, []  # k: the call that runs
        self.owner = torch.cat([owner, torch.tensor([-1])])  # -1 has a gradient that was there before
        self.model = model(self.owner)
        self.ran = self.model.ran
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        if case.old_gradient:
            self.model.weight[-1].backward()
        self.optimizer.register_step_post_hook(self.stepped)  # after a step, to see what its closure has computed

    def loss_fn(self, model: Callable, batch: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return model(batch).mean()

    def stepped(self, *_) -> None:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()]
        norm, number = float(get_total_norm(grads)), len(self.steps) + 1
        self.steps.append(Step(number, self.k, grads[0].clone(), norm, {*self.ran}))

    def batches(self, samples: Sequence[Tensor]) -> list:
        """The batches of one call, of these samples."""
        return [each.clone() for each in samples]

    def run(self, call: Callable[[list], object]) -> dict[str, Any]:
        """Runs the loop: `call` gives it the batches of one call after the other."""
        left = self.samples
        with saved_bytes(self.model) as saved:
            for k, sizes in enumerate(self.case.calls):
                self.k, given, left = k, left[: sum(sizes)].split([*sizes]), left[sum(sizes) :]
                batches = self.batches(given)
                call(batches)
                unchanged(batches, self.batches(given))
        self.peak, grad = saved.peak, self.model.weight.grad
        if grad is not None and not grad.isfinite().all():
            self.late = "stale-gradients", " `.grad` still holds an infinity or a NaN."
        return {"updates": self}

    def held(self, step: Step | None) -> set[int]:
        """The batches of an update."""
        return set() if step is None else set(self.owner[step.row != 0].tolist())

    def compare(self, want: "Loop") -> None:
        """Raises a `Mistake` for the first update that is not as it should be."""
        expected = f"{self.name}; expected {len(want.steps)} updates."
        if not (self.steps or self.ran):
            raise not_attempted(f"no backward pass and no step has run yet{expected}")
        if not self.steps:
            self.wrong(self.late[0], f"no step has used a gradient{expected}{self.late[1]}")
        for call in range(want.steps[-1].call + 1):
            mine, right = ([step for step in loop.steps if step.call == call] for loop in (self, want))
            for pair in zip_longest(mine, right):
                self.compare_update(*pair)
        weights, rights = (parameters_to_vector(loop.model.parameters()).detach() for loop in (self, want))
        if not agree(weights, rights):
            off = float((weights - rights).abs().max())
            raise Mistake("wrong-value", f"the updates are right, but a weight ends up {off:.2g} off.", ELSE)
        if self.peak > 1.8 * want.peak:  # a loss that is written by hand keeps more; two batches, twice as much
            kept = f"{self.peak} bytes are kept for the backward pass at once, where one batch needs {want.peak}"
            raise Mistake("held-graphs", f"the updates are right, but {kept}.", GRAPHS)

    def wrong(self, bug: str, message: str) -> None:
        raise Mistake(bug, message, WHEN[bug])

    def compare_update(self, step: Step | None, right: Step | None) -> None:
        """Compares an update with the correct one: its batches, and how much each counts."""
        due, has = self.held(right), self.held(step)
        lost, strangers = due - has, has - due
        if step is None:
            if rest := due - self.ran:
                self.wrong("missing-backward", f"the loop ends before batches {listed(rest)}{self.name} or skips them.")
            self.wrong(self.late[0], f"batches {listed(due)} never get their step{self.name}.{self.late[1]}")
        update = f"update {step.number}{self.name}"
        if right is None:
            bug = "irregular-window" if has else "empty-step"
            self.wrong(bug, f"{update} is a step too many: it holds batches {listed(has)}.")
        holds, early = f"{update} holds batches {listed(has)} instead of {listed(due)}", lost - step.ran
        if has & due and strangers and max(strangers) < min(due):
            self.wrong("stale-gradients", f"{holds}: the rest was in `.grad` already.")
        if strangers or (has and early & self.ran):
            self.wrong("irregular-window", f"{holds}.")
        if early:
            bug = "missing-backward" if has else "empty-step"
            self.wrong(bug, f"{holds}: no backward pass had reached what is missing.")
        if lost:
            self.wrong("discarded-gradients", f"{holds}: what is missing was zeroed, or multiplied by 0.")
        if agree(step.row, right.row, 1e-5):  # PyTorch adds a millionth to the norm that it divides by
            return
        factors, owner = (step.row / right.row)[right.row != 0], self.owner[right.row != 0]
        alike = agree(factors, factors[:1].expand_as(factors), 1e-5)
        limit = self.case.settings.get("max_norm")
        clips = any(agree(norm, limit, 1e-3) for norm in (step.norm, step.norm * SCALE, right.norm))
        times = [float(f"{factors[owner == index].mean():.{3 if clips else 6}g}") for index in owner.unique()]
        counts = f"the batches of {update} count {times} times what they should"
        if clips:
            norms = f"and the norm at the step is {step.norm:.3g} instead of {right.norm:.3g}"
            why = norms if alike else "unequally: a limit acted before the window was complete"
            raise Mistake("clip-timing", f"{counts}, {why}.", LIMIT)
        if all(abs(x - 1) < 0.004 for x in times):
            raise Mistake("low-precision", f"{counts}: a factor is rounded, or has too few digits.", DIGITS)
        if alike:
            raise Mistake("loss-scale", f"{update} is {times[0]:g} times what it should be.", SHARE)
        raise Mistake("token-weights", f"{counts}.", WEIGHT)


def losses_of(result: object, what: str) -> list[float]:
    """The losses that a loop has returned, as numbers; `what` is for the message."""
    result = returned(result, what)
    losses = numbers(result, 1, what)
    if any(getattr(loss, "requires_grad", False) for loss in result):
        raise Mistake("held-graphs", "the losses hold graphs: log numbers, or detach.", GRAPHS)
    return losses


@contextmanager
def one_rank() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        # Gloo's thread may still need the GIL to free its last tensors. Whoever frees the group
        # holds the GIL and waits for that thread: both would wait for ever.
        time.sleep(0.05)
        dist.destroy_process_group()


def solution(model, batches, loss_fn, optimizer, n=1, max_norm=None):
    train_epoch(model, batches, loss_fn, optimizer, n, len, max_norm=max_norm)


def watch_loop(answer: Callable, case: Case) -> dict[str, Any]:
    """Watches a loop of a model, batches, a loss and an optimizer, with N and `max_norm`."""
    loop, more = Loop(case), [case.settings[name] for name in ("n", "max_norm") if name in case.settings]
    return loop.run(lambda batches: answer(loop.model, batches, loop.loss_fn, loop.optimizer, *more))


def loops_agree(answer: Callable, cases: Sequence[Case]) -> None:
    """Raises a `Mistake` unless a loop makes the updates of `train_epoch`."""
    compare(watch_loop, answer, solution, cases)
