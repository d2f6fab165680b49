"""Judges what a training loop puts into each update: which micro-batches are in it, and how much each item counts.

An item is a sample or a token. The loop runs on a model whose gradient can be read, such as a `Tally`; a `Recorder`
keeps `.grad` at every step. These `Observed` updates are compared with the `Expected` ones, those of one large batch
per window, and the first bug that they show is named. Then the loop trains a real model, of which every parameter is
compared (`judge_model`).
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import isgenerator
from itertools import chain
from math import inf

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from course_utils.loops import windows
from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.judging import (
    F32_ATOL,
    F32_RTOL,
    Known,
    Mistake,
    changed,
    close,
    compare,
    compare_memory,
    compare_weights,
    number,
    rounded,
)

CLIP_RTOL = 1e-4  # PyTorch adds a millionth to the norm that it divides by; clipping by hand need not
LOG_RTOL, LOG_ATOL = 4e-3, 6e-4  # a logged loss that is this near has been rounded: bfloat16, or three decimals
ROUNDED = 0.012  # a factor that is so near to what it should be has lost digits: two are left of 1/3
QUIET, LOUD = 2.0**-10, 2.0**10  # by what losses may be multiplied: a power of two leaves no trace
OLD = 7.0  # every entry of the gradient that an earlier backward pass has left, in a case that starts dirty

Loop = Callable[[nn.Module, Sequence, Callable, Optimizer, int], object]
Train = Callable[[nn.Module, Optimizer], object]
MakeOptimizer = Callable[[Iterable], Optimizer]
Diagnoses = Iterator[tuple[bool, str, str]]  # whether a bug shows, its name, and how; asked only if none before shows


@dataclass
class Observed:
    """What a loop did."""

    rows: list[Tensor]  # for each step, how much every item counts in it
    in_first_epoch: int  # how many of these steps belong to the first epoch
    backwards: int  # how often a gradient arrived
    steps: int  # also those that are not in `rows` because they found no gradient
    moved: bool = True  # whether any backward pass left more than zeros in `.grad`
    changed: str = ""  # how the loop changed the micro-batches that it was given


class Recorder:
    """Keeps a parameter's `.grad` as each step of an optimizer uses it, by epoch.

    It reads `.grad` after the step, so that it also sees what the closure of `step(closure)` has computed. If `dirty`,
    the parameter begins with a gradient that an earlier backward pass seems to have left.
    """

    def __init__(self, weight: nn.Parameter, optimizer: Optimizer, dirty: bool = False):
        self.epochs: list[list[Tensor | None]] = []  # None: the step found no gradient
        self.backwards = 0
        self.moved = False
        self._weight = weight
        if dirty:
            weight.grad = torch.full_like(weight, OLD)
        optimizer.register_step_post_hook(self._read)
        weight.register_post_accumulate_grad_hook(self._count)

    def start_epoch(self) -> None:
        self.epochs.append([])

    def observed(self, skip_idle: bool = False) -> Observed:
        """All that was seen; a step without a gradient is a row of zeros, or with `skip_idle` no row."""
        kept = [[row for row in epoch if row is not None or not skip_idle] for epoch in self.epochs]
        rows = [torch.zeros_like(self._weight) if row is None else row for row in chain(*kept)]
        return Observed(rows, len(kept[0]), self.backwards, sum(map(len, self.epochs)), self.moved)

    def _read(self, *_) -> None:
        grad = self._weight.grad
        self.epochs[-1].append(None if grad is None else grad.detach().clone())

    def _count(self, weight: Tensor) -> None:
        self.backwards += 1
        self.moved = self.moved or bool(weight.grad.any())


class Expected:
    """The updates of one large batch per window, and the names of the bugs of a loop that makes others.

    Args:
        sizes: How many items count in each micro-batch.
        n: Micro-batches per window. A window in which nothing counts makes no update.
        epochs: How often the loop goes over the micro-batches.
        other_sizes: What else a loop may weight micro-batches by: for each, a sentence that says so, and these sizes.
        unit: What the items are called.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        n: int,
        epochs: int = 2,
        other_sizes: Sequence[tuple[str, Sequence[int]]] = (),
        unit: str = "samples",
    ):
        self.sizes, self.n, self.epochs, self.other_sizes, self.unit = sizes, n, epochs, other_sizes, unit
        self.windows = [group for group in windows(range(len(sizes)), n) if any(sizes[place] for place in group)]
        self.owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))  # micro-batch of each item
        rows = [torch.isin(self.owner, torch.tensor(group)).double() for group in self.windows]
        self.rows = [row / row.sum() for row in rows] * epochs

    def compare(self, observed: Observed, case: str, old: float | Tensor | None = None) -> None:
        """Raises a `Mistake` that names the first bug, unless all updates are as expected.

        `old` is how an old gradient would show in the first row, in a case that starts with one.
        """
        if close(observed.rows, self.rows):
            if observed.changed:
                raise Mistake("changed-input", f"{case}: the updates are right, but {observed.changed}.")
            return
        if old is not None and observed.rows and close(observed.rows[0], self.rows[0] + old):
            hint = "the old gradient entered the first update. Zero once before the first backward pass, too"
            raise Mistake("stale-gradients", f"{case}: {hint}.")
        if close(observed.rows, self.rows, F32_RTOL, F32_ATOL):
            hint = "the updates are right to four digits only: computed in float32 or less, or rounded"
            raise Mistake("low-precision", f"{case}: {hint}.")
        bug, hint = self.diagnose(observed)
        raise Mistake(bug, f"{case}: {hint}.")

    def compare_clipped(self, observed: Observed, case: str, max_norm: float) -> None:
        """Raises a `Mistake` unless every update is as expected, once its norm has been clipped to `max_norm`."""
        if len(observed.rows) != len(self.rows):
            bug, hint = self.diagnose(observed)
            raise Mistake(bug, f"{case}: {hint}.")
        for k, (row, whole) in enumerate(zip(observed.rows, self.rows, strict=True), start=1):
            hint = diagnose_clipping(row, whole, max_norm)
            if hint:
                raise Mistake("clip-timing", f"{case}: {hint} (update {k}).")

    def diagnose(self, observed: Observed) -> tuple[str, str]:
        """The first bug that the updates show, and how it shows. Updates and micro-batches are counted from 1."""
        used, wanted = ([self.owner[row != 0].unique().tolist() for row in rows] for rows in (observed.rows, self.rows))
        many = f"{len(wanted)} update" + "s" * (len(wanted) != 1)
        if self.epochs == 2:
            many += f", since the check runs two epochs of {len(self.windows)}"
        held = f"micro-batches per update: {[len(u) for u in used]}, expected {[len(w) for w in wanted]} ({many})"
        for shows, bug, hint in self._missing_steps(observed, used):
            if shows:
                return bug, f"{hint}; {held}" if any(used) else f"{hint}; expected {many}"
        for shows, bug, hint in self._wrong_windows(observed, used, wanted):
            if shows:
                return bug, f"{hint}; {held}"
        for shows, bug, hint in self._wrong_items(observed.rows, used, wanted):
            if shows:
                return bug, hint
        return "wrong-value", "the updates are not those of the large batch"

    def _missing_steps(self, observed: Observed, used: list[list[int]]) -> Diagnoses:
        steps, backwards = observed.steps, observed.backwards
        zeroed = "found no gradient. Something zeroes between backward() and step()"
        empty = "a step ran for a window in which nothing counts: zeros still move the weights under momentum or Adam"
        yield not backwards and not steps, "not-attempted", "no backward pass and no step has run yet"
        yield any(row.isnan().any() for row in observed.rows), "nan", "a gradient is NaN. A mean over nothing is 0/0"
        yield not steps, "leftover-gradients", "no optimizer.step() has run"
        yield not backwards and not any(used), "empty-step", "every step found no gradient: no backward pass has run"
        silent = "every gradient is zero: the loss is multiplied by 0, or divided by // instead of /"
        yield not any(used) and not observed.moved, "loss-scale", silent
        yield not any(used), "discarded-gradients", f"every step {zeroed}"
        yield [] in used and 0 in self.sizes, "empty-step", empty
        yield [] in used, "empty-step", "a step found no gradient"
        fewer = len(used) < len(self.rows) <= steps
        none = "a step found no gradient: no micro-batch of its window had a backward pass"
        yield fewer and backwards <= sum(map(len, used)), "missing-backward", none
        yield fewer, "discarded-gradients", f"a step {zeroed}"

    def _wrong_windows(self, observed: Observed, used: list[list[int]], wanted: list[list[int]]) -> Diagnoses:
        many, first = len(self.windows), used[: observed.in_first_epoch]
        held = [place for place, size in enumerate(self.sizes) if size]

        filtered = list(windows(held, self.n)) * self.epochs
        hint = "micro-batches in which nothing counts are left out before the windows are made"
        yield used == filtered != wanted, "filtered-windows", f"{hint}: they take their place in a window, too"
        full = [group for group in self.windows if all(self.sizes[place] for place in group)] * self.epochs
        hint = "a window is left out where one of its micro-batches holds nothing: train on the others"
        yield used == full != wanted, "filtered-windows", hint

        each = len(first) == len(self.sizes) > many and len(used[0]) == 1
        yield each, "irregular-window", "a step after every micro-batch"
        absent = sorted(set(held) - set(chain(*first)))
        hint = f"micro-batches {_numbers(absent)} of an epoch never get a backward pass"
        fewer = len(first) == many and all(set(u) < set(w) or u == w for u, w in zip(used, wanted, strict=False))
        yield absent and fewer and observed.backwards <= sum(map(len, used)), "missing-backward", hint
        early = used[0] != wanted[0] and used[0] == list(chain(*wanted))[: len(used[0])]
        hint = f"the first step comes after micro-batch {len(used[0])} instead of micro-batch {len(wanted[0])}"
        yield early, "irregular-window", hint

        last = wanted[many - 1]
        only_first = first == wanted[:1] and len(last) == self.n
        stopped = observed.backwards < self.epochs * len(held) - len(last)
        yield only_first and many > 2 and stopped, "irregular-window", "the loop ends after its first update"
        hint = "only the first window of an epoch gets a step, as if a counter were never set back"
        yield only_first and many > 2, "not-reset", hint
        hint = f"the last window of an epoch, micro-batches {_numbers(last)}, never gets its step"
        yield len(first) < many and not set(last) & set(chain(*first)), "leftover-gradients", hint
        yield len(first) != many, "irregular-window", f"updates in an epoch: {len(first)}, expected {many}"

    def _wrong_items(self, rows: list[Tensor], used: list[list[int]], wanted: list[list[int]]) -> Diagnoses:
        many = len(self.windows)
        for k, (row, want) in enumerate(zip(rows, self.rows, strict=False)):
            strangers = sorted(set(used[k]) - set(wanted[k]))
            later = strangers and k < many and strangers[-1] > wanted[k][-1]
            which = f"{self._update(k)} holds micro-batches {_numbers(used[k])} instead of {_numbers(wanted[k])}"
            yield later and set(wanted[k]) <= set(used[k]), "irregular-window", which
            yield later or (strangers and not set(used[k]) & set(wanted[k])), "wrong-batches", which
            twice = k >= many and close(row, want + rows[k - many])
            which = f"micro-batches {_numbers(strangers)}" if strangers else "the same ones in the epoch before"
            hint = f"{self._update(k)} still holds gradients of earlier updates ({which})"
            yield strangers or twice, "stale-gradients", hint
        hint = f"updates in {self.epochs} epochs: {len(rows)}, expected {len(self.rows)}"
        yield len(rows) != len(self.rows), "irregular-window", hint
        for k, (row, want) in enumerate(zip(rows, self.rows, strict=True)):
            which = f"micro-batches {_numbers(used[k])} of {_numbers(wanted[k])}"
            hint = f"{self._update(k)} holds {which}: the rest was zeroed inside the window"
            yield used[k] != wanted[k], "discarded-gradients", hint
            factors, owner = (row / want)[want != 0], self.owner[want != 0]
            yield not close(row, want), *self._wrong_weights(k, factors, owner)

    def _update(self, k: int) -> str:
        """Update `k`, counted from 1, in words."""
        return f"update {k + 1}" + (" (in the second epoch)" if self.epochs == 2 and k >= len(self.windows) else "")

    def _wrong_weights(self, k: int, factors: Tensor, owner: Tensor) -> tuple[str, str]:
        """The bug of an update with the correct items, each of which counts `factors` times what it should."""
        if ((factors - 1).abs() < ROUNDED).all():
            hint = "is rounded, or was computed in a type of few digits"
            factor = _times(float(factors[(factors - 1).abs().argmax()]))
            return "low-precision", f"{self._update(k)} is {factor} times what it should be: a factor {hint}"
        window = self.windows[k % len(self.windows)]
        sizes, first = [self.sizes[place] for place in window], float(factors[0])
        if close(factors, torch.full_like(factors, first)):
            fix, which = "", self._update(k)
            if len(window) < len(self.windows[0]):
                which, fix = f"{which}, of a short window,", ": divide by what it holds, not by N"
            for what, other in self.other_sizes:
                if close(first, sum(sizes) / sum(other[place] for place in window)):
                    fix = f": {what}"
            if first < 1 and 0 in sizes:
                fix = ": micro-batches in which nothing counts are counted as if something did"
            return "loss-scale", f"{which} is {_times(first)} times what it should be{fix}"
        each = [float(factors[owner == place].mean()) for place in window if self.sizes[place]]
        counts = [float(_times(factor)) for factor in each]
        found = f"in {self._update(k)} the {self.unit} of its micro-batches count {counts} times what they should"
        for what, other in (*self.other_sizes, ("each micro-batch counts the same, however much it holds", None)):
            weights = [other[place] if other else 1 for place in window]
            if close(each, [w / sum(weights) * sum(sizes) / s for w, s in zip(weights, sizes, strict=True) if s]):
                return "token-weights", f"{found}: {what}"
        if len(set(sizes)) == 1 and not self.other_sizes:
            return "loss-scale", f"{found}: all of them must count the same"
        return "token-weights", f"{found}: weight each micro-batch by the {self.unit} that it holds"


def _numbers(places: Sequence[int]) -> list[int]:
    """Micro-batches as messages count them, from 1."""
    return [place + 1 for place in places]


def _times(factor: float) -> str:
    """A factor with three digits, or with as many as show that it is not 1."""
    return f"{factor:.3g}" if abs(factor - 1) > 0.005 else f"{factor:.6g}"


def diagnose_clipping(row: Tensor, whole: Tensor, max_norm: float) -> str:
    """How it shows that `row` is not the gradient `whole`, clipped once to `max_norm`; empty if it is."""
    got, norm = float(row.norm()), float(whole.norm())
    want = whole * min(1.0, max_norm / norm)
    if close(row, want, CLIP_RTOL):
        return ""
    if close(row, whole, CLIP_RTOL):
        return f"a gradient of norm {got:.3g} reached the step: it was not clipped, or not at that moment"
    if got and close(row / got, whole / norm, CLIP_RTOL):
        return f"the norm at the step is {got:.3g} instead of {float(want.norm()):.3g}"
    factors = rounded((row / want)[whole != 0].tolist()[:8])
    return f"what the window holds counts {factors} times what it should: clipping came between backward passes"


def judge_limit(run: Callable[[float, float], Observed], case: str) -> None:
    """Sees that a limit which no gradient reaches changes none, however large they are.

    `run(factor, max_norm)` runs the loop on a tally with each loss multiplied by `factor`.
    """
    small, large = (run(factor, 1e12).rows for factor in (1.0, 1e6))
    for k, (row, want) in enumerate(zip(large, (row * 1e6 for row in small), strict=False), start=1):
        if not close(row, want, CLIP_RTOL):
            norms = f"a gradient of norm {float(want.norm()):.3g} reaches the step with norm {float(row.norm()):.3g}"
            hint = "max_norm should be the limit, and nothing below it should change"
            raise Mistake("clip-limit", f"{case}, max_norm = 1e12: {norms} (update {k}): {hint}.")


@contextmanager
def only_clipping_is_new() -> Iterator[None]:
    """In the block a model is trained that was right without clipping: a wrong value comes from the clipping."""
    try:
        yield
    except Mistake as mistake:
        if mistake.verdict.bug != "wrong-value":
            raise
        hint = "Without clipping all is right. Is it clipped by one norm, of all parameters together?"
        raise Mistake("clip-limit", f"{mistake.verdict.message} {hint}") from None


def recorded_tally(items: int, lr: float, dirty: bool = False) -> tuple[Tally, Optimizer, Recorder]:
    """A `Tally` of so many items, an optimizer for it, and what records the optimizer's steps."""
    tally = Tally(items).double()
    optimizer = torch.optim.SGD(tally.parameters(), lr=lr)
    return tally, optimizer, Recorder(tally.weight, optimizer, dirty)


def run_on_tally(loop: Loop, sizes: Sequence[int], n: int, dirty: bool = False) -> Observed:
    """Runs two epochs of a loop on a `Tally`, with micro-batches of these sizes."""
    tally, optimizer, recorder = recorded_tally(sum(sizes), 0.5, dirty)
    how = ""
    for _ in range(2):
        recorder.start_epoch()
        given, batches = (list(torch.arange(sum(sizes)).split(list(sizes))) for _ in range(2))
        result = loop(tally, batches, lambda model, batch: model(batch).mean(), optimizer, n)
        if isgenerator(result):
            raise Mistake("wrong-type", "your function has a `yield`, so none of its lines has run: it is a generator.")
        how = how or changed(batches, given, "the list of micro-batches")
    observed = recorder.observed()
    observed.changed = how
    return observed


def judge_updates(loop: Loop, sizes: Sequence[int], n: int, dirty: bool = False) -> None:
    """Compares each update of a loop with the large batch, for micro-batches of these sizes."""
    case = f"micro-batches of {list(sizes)} samples, N = {n}" if n > 1 else f"batches of {list(sizes)} samples"
    case += ", and a gradient left by an earlier backward pass" if dirty else ""
    Expected(sizes, n).compare(run_on_tally(loop, sizes, n, dirty), case, OLD if dirty else None)


def judge_model(
    answer: Train,
    correct: Train,
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    case: str,
    one: Callable[[nn.Module], object] | None = None,
    factor: float = 1.5,
) -> None:
    """Trains copies of a model in two ways and compares every parameter, and what was held for the backward pass.

    `one` is the forward pass of the largest micro-batch, of which at most `factor` times the memory may be held; or
    `alone(...)`, if the answer computes its own loss.
    """
    ours, theirs = model, copy.deepcopy(model)
    optimizer = make_optimizer(ours.parameters())
    case = f"{case}, {type(optimizer).__name__}"
    with saved_bytes(theirs) as alone:
        if one is not None:
            one(theirs)
    correct(ours, optimizer)
    optimizer = make_optimizer(theirs.parameters())
    with saved_bytes(theirs) as saved:
        answer(theirs, optimizer)
    compare_weights(ours, theirs, case)
    if one is not None:
        compare_memory(saved, alone, case, factor)


def judge_loud(judge: Callable) -> None:
    """Judges a case that was right with tiny gradients once more, with large ones: a limit on the norm shows."""
    try:
        judge(loud=LOUD)
    except Mistake as mistake:
        found = "With tiny gradients all updates are right, so something limits large ones"
        raise Mistake("clip-limit", f"{mistake.verdict.message} {found}.") from None


def compare_losses(result: Sequence, right: list[float], case: str, known: Known, bug: str, hint: str) -> None:
    """Compares the losses that a loop logged, `result`, with the right ones, and sees that they hold no graphs.

    `bug` and `hint` are for losses that are neither right nor `known`.
    """
    got = [number(loss) for loss in result]
    digits = "the losses are right to a few digits only. Return them as they are, without rounding"
    few = [[round(loss, places) for loss in right] for places in range(4)] + [[float(int(loss)) for loss in right]]
    if close(got, right, LOG_RTOL, LOG_ATOL):
        bug, hint = "low-precision", digits
    rounded_off = [("low-precision", digits, losses) for losses in few]
    compare(got, right, case, [*rounded_off, *known, (bug, hint, got)])
    if any(isinstance(loss, Tensor) and loss.grad_fn is not None for loss in result):
        hint = "the losses are right, but they are tensors that still hold their graphs: log numbers, or detach"
        raise Mistake("held-graphs", f"{case}: {hint}.")


def losses_of_large_batches(
    model: nn.Module, optimizer: Optimizer, groups: Sequence, loss_fn: Callable
) -> tuple[list[float], Known]:
    """Trains on one large batch after the other: the loss of each before its update, and what else may be logged."""

    def at_these_weights() -> list[float]:
        return [float(loss_fn(model, group)) for group in groups]

    start, before, after = at_these_weights(), [], []
    for group in groups:
        optimizer.zero_grad()
        loss = loss_fn(model, group)
        loss.backward()
        optimizer.step()
        before.append(loss.item())
        after.append(float(loss_fn(model, group)))
    meant = "the loss of a window is meant at the weights of its own forward passes, before its update"
    found = (
        ("after each update", after),
        ("at the end of the epoch", at_these_weights()),
        ("at the start of the epoch", start),
    )
    return before, [("wrong-weights", f"these are the losses {when}; {meant}", losses) for when, losses in found]


def alone(train: Train) -> Callable[[nn.Module], None]:
    """For `judge_model(one=...)`: what the answer itself holds when `train` gives it a single micro-batch.

    Then a loop that computes its loss in an unusual way is compared with itself.
    """

    def one(model: nn.Module) -> None:
        train(model, torch.optim.SGD(model.parameters(), lr=0.0))
        model.zero_grad()

    return one


def large_batches(
    groups: Iterable[list[Tensor]],
    max_norm: float = inf,
    skip_norm: float = inf,
    make_scheduler: Callable[[Optimizer], LRScheduler] = lambda optimizer: LambdaLR(optimizer, lambda step: 1.0),
) -> Train:
    """One large batch per window: no accumulation at all, hence nothing that could be wrong with it.

    Where the norm is above `skip_norm` or is NaN, no update is made.
    """

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        scheduler = make_scheduler(optimizer)
        for window in groups:
            optimizer.zero_grad()
            squared_error(model, torch.cat(window)).backward()
            if nn.utils.clip_grad_norm_(model.parameters(), max_norm) <= skip_norm:
                optimizer.step()
                scheduler.step()

    return train


def random_batches(sizes: Sequence[int]) -> list[Tensor]:
    """Micro-batches whose rows hold three inputs and two targets."""
    return [torch.randn(size, 3 + 2, dtype=torch.float64) for size in sizes]


def squared_error(model: nn.Module, batch: Tensor) -> Tensor:
    """The mean loss of one of `random_batches`."""
    return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])


def sgd(parameters: Iterable) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Iterable) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def judge_loop_on_model(
    loop: Loop,
    make_optimizer: MakeOptimizer,
    n: int,
    sizes: Sequence[int] = (4, 4, 4, 2, 3),
    max_norm: float = inf,
    memory: bool = True,
) -> None:
    """Compares two epochs of a loop with large batches: every parameter of a small perceptron, and memory."""
    batches = random_batches(sizes)

    def answer(model: nn.Module, optimizer: Optimizer) -> None:
        for _ in range(2):
            loop(model, list(batches), squared_error, optimizer, n)

    correct = large_batches([*windows(batches, n)] * 2, max_norm)
    case = (
        "on a real model" + (f", N = {n}" if n > 1 else "") + (f", max_norm = {max_norm:g}" if max_norm < inf else "")
    )
    one = partial(squared_error, batch=batches[0]) if memory else None
    judge_model(answer, correct, mlp(3, 5, 2).double(), make_optimizer, case, one)


def judge_loop(loop: Loop, n_values: Sequence[int], dirty: bool = True) -> None:
    """Judges a loop that makes one update per window, on a tally (if `dirty`, also from a dirty start) and a model."""
    judge_loop_on_tallies(loop, n_values, dirty)
    judge_loop_on_models(loop, n_values)


def judge_loop_on_tallies(loop: Loop, n_values: Sequence[int], dirty: bool = True) -> None:
    """Compares which micro-batches are in each update, and how much every sample counts in it."""
    # Equal sizes and the first N come first: a lost tail, or one that is divided by N, then shows as itself. Six come
    # first: with N = 2 a third window tells a counter that is never set back from a last window that gets no step.
    equal = [(sizes, n) for n in n_values for sizes in ((2, 2, 2, 2, 2, 2), (2, 2, 2, 2))]
    for sizes, n in equal + [((4, 2, 1, 3, 2), n) for n in n_values]:
        judge_updates(loop, sizes, n)
    if dirty:
        judge_updates(loop, (2, 2, 2, 2), n_values[0], dirty=True)


def judge_loop_on_models(loop: Loop, n_values: Sequence[int]) -> None:
    """Compares every parameter after two epochs, and what is held for the backward pass, under SGD and Adam."""
    for make_optimizer in (sgd, adam):
        for n in n_values:
            judge_loop_on_model(loop, make_optimizer, n)
