"""Judges what a training loop puts into each update: which micro-batches are in it, and how much each item counts.

The loop runs on a model whose gradient can be read, such as a `Tally`; a `Recorder` keeps `.grad` at every step. These
`Observed` updates are compared with the `Expected` ones, those of one large batch per window, and the first bug that
they show is named. Then the loop trains a real model, of which every parameter is compared (`judge_model`).
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.loops import windows
from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.judging import Mistake, close, compare_memory, compare_weights, rounded

CLIP_RTOL = 1e-4  # PyTorch adds a millionth to the norm that it divides by; clipping by hand need not
OLD = 7.0  # every entry of the gradient that an earlier backward has left, in a case that starts dirty

Loop = Callable[[nn.Module, Sequence, Callable, Optimizer, int], object]


@dataclass
class Observed:
    """What a loop did.

    Args:
        rows: For each step, how much every item counts in it.
        in_first_epoch: How many of these steps belong to the first epoch.
        backwards: How often a gradient arrived.
        steps: How many steps ran, also those that were left out of `rows` because there was no gradient.
    """

    rows: list[Tensor]
    in_first_epoch: int
    backwards: int
    steps: int


class Recorder:
    """Keeps a parameter's `.grad` as each step of an optimizer uses it, by epoch.

    It reads `.grad` after the step, so that it also sees what the closure of `step(closure)` has computed.

    Args:
        weight: The parameter.
        optimizer: The optimizer that updates it.
        dirty: Whether to begin with a gradient that an earlier backward seems to have left.
    """

    def __init__(self, weight: nn.Parameter, optimizer: Optimizer, dirty: bool = False):
        self.weight = weight
        self.epochs: list[list[Tensor | None]] = []  # None: the step found no gradient
        self.backwards = 0
        if dirty:
            weight.grad = torch.full_like(weight, OLD)
        optimizer.register_step_post_hook(self._read)
        weight.register_post_accumulate_grad_hook(self._count)

    def start_epoch(self) -> None:
        self.epochs.append([])

    def observed(self, skip_idle: bool = False) -> Observed:
        """All that has been seen; a step without a gradient is a row of zeros, or with `skip_idle` no row."""
        kept = [[row for row in epoch if row is not None or not skip_idle] for epoch in self.epochs]
        rows = [torch.zeros_like(self.weight) if row is None else row for row in chain(*kept)]
        return Observed(rows, len(kept[0]), self.backwards, sum(map(len, self.epochs)))

    def _read(self, *_) -> None:
        grad = self.weight.grad
        self.epochs[-1].append(None if grad is None else grad.detach().clone())

    def _count(self, _: Tensor) -> None:
        self.backwards += 1


class Expected:
    """The updates of one large batch per window, and the names of the bugs of a loop whose updates are others.

    Args:
        sizes: How many items count in each micro-batch; items are numbered through.
        n: Micro-batches per window. A window in which nothing counts makes no update.
        epochs: How often the loop goes over the micro-batches.
        other_sizes: What else a loop may mistake for the sizes: for each, a sentence and what it counts.
    """

    def __init__(
        self, sizes: Sequence[int], n: int, epochs: int = 2, other_sizes: Sequence[tuple[str, Sequence[int]]] = ()
    ):
        self.sizes, self.n, self.epochs = sizes, n, epochs
        self.windows = [group for group in windows(range(len(sizes)), n) if any(sizes[place] for place in group)]
        self.owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))  # micro-batch of each item
        rows = [torch.isin(self.owner, torch.tensor(group)).double() for group in self.windows]
        self.rows = [row / row.sum() for row in rows] * epochs
        one_each = "each micro-batch counts the same, however much it holds"
        self.other_sizes = ((one_each, [1] * len(sizes)), *other_sizes)

    def compare(self, observed: Observed, case: str, old: float | Tensor | None = None) -> None:
        """Raises a `Mistake` that names the first bug, unless all updates are as expected.

        Args:
            observed: What the loop did.
            case: What is tried; the message begins with it.
            old: How an old gradient would show in the first row, in a case that starts with one.
        """
        if close(observed.rows, self.rows):
            return
        if old is not None and observed.rows and close(observed.rows[0], self.rows[0] + old):
            hint = "the old gradient entered the first update. Zero once before the first backward, too"
            raise Mistake("stale-gradients", f"{case}: {hint}.")
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
        used = [sorted(set(self.owner[row != 0].tolist())) for row in observed.rows]
        return self._steps(observed, used) or self._windows(observed, used) or self._items(observed, used)

    def _held(self, used: list[list[int]]) -> str:
        right = [sum(self.sizes[place] > 0 for place in group) for group in self.windows]
        return f"micro-batches per update: {[len(u) for u in used]}, expected {right * self.epochs}"

    def _steps(self, observed: Observed, used: list[list[int]]) -> tuple[str, str] | None:
        """Bugs that show in whether backward, step and gradients are there at all."""
        if not observed.backwards and not observed.steps:
            return "not-attempted", f"no backward and no step has run yet, {len(self.rows)} updates are expected"
        if any(row.isnan().any() for row in observed.rows):
            return "nan", "a gradient is NaN. A mean over no target at all is 0/0"
        if not observed.steps:
            return "leftover-gradients", f"no optimizer.step() has run, {len(self.rows)} were expected"
        if not any(used):
            found = f"every one of {observed.steps} steps found no gradient"
            if not observed.backwards:
                return "empty-step", f"{found}, because no backward has run"
            return "discarded-gradients", f"{found}. Something zeroes between backward and step"
        if [] in used:
            found = f"update {used.index([]) + 1} found no gradient"
            if 0 in self.sizes:
                found += ", since nothing counts in its window: zeros still move the weights under momentum or Adam"
            return "empty-step", f"{found}; {self._held(used)}"
        if len(used) < len(self.rows) <= observed.steps:
            hint = "a step found no gradient. Something zeroes between backward and step"
            return "discarded-gradients", f"{hint}; {self._held(used)}"
        return None

    def _windows(self, observed: Observed, used: list[list[int]]) -> tuple[str, str] | None:
        """Bugs that show in how many micro-batches an update holds."""
        held, groups = self._held(used), [[p for p in group if self.sizes[p]] for group in self.windows]
        first = used[: observed.in_first_epoch]
        if len(first) == len(self.sizes) > len(groups):
            return "irregular-window", f"a step after every micro-batch; {held}"
        if used[0] != groups[0] and used[0] == list(chain(*groups))[: len(used[0])]:
            return (
                "irregular-window",
                f"the first step comes after {len(used[0])} instead of {len(groups[0])}; {held}",
            )
        if not set(groups[-1]) & set(chain(*first)):
            lost = [place + 1 for place in groups[-1]]
            return (
                "leftover-gradients",
                f"{held}. The last window of an epoch, micro-batches {lost}, never gets its step",
            )
        if len(first) != len(groups):
            return "irregular-window", f"{len(first)} updates in an epoch instead of {len(groups)}; {held}"
        return None

    def _items(self, observed: Observed, used: list[list[int]]) -> tuple[str, str]:
        """Bugs that show in which items an update holds, and how much they count."""
        rows, many = observed.rows, len(self.windows)
        for k, (row, want) in enumerate(zip(rows, self.rows, strict=False)):
            strangers = sorted({int(place) + 1 for place in self.owner[(row != 0) & (want == 0)]})
            if strangers or (k >= many and close(row, want + rows[k - many])):
                which = f"micro-batches {strangers}" if strangers else "the same micro-batches in the epoch before"
                return "stale-gradients", f"update {k + 1} still holds gradients of earlier updates ({which})"
        if len(rows) != len(self.rows):
            hint = f"{len(rows)} updates in {self.epochs} epochs instead of {len(self.rows)}"
            return "irregular-window", f"{hint}; {self._held(used)}"
        for k, (row, want) in enumerate(zip(rows, self.rows, strict=True)):
            if close(row, want):
                continue
            group = [place for place in self.windows[k % many] if self.sizes[place]]
            if (row == 0)[want != 0].any():
                which = f"micro-batches {[place + 1 for place in used[k]]} of {[place + 1 for place in group]}"
                return "discarded-gradients", f"update {k + 1} holds {which}: the rest was zeroed inside the window"
            return self._scale(k, (row / want)[want != 0], self.owner[want != 0], self.windows[k % many])
        return "wrong-value", "the updates are not those of the large batch"

    def _scale(self, k: int, factors: Tensor, owner: Tensor, group: list[int]) -> tuple[str, str]:
        """The bug of an update that holds the right items, each `factors` times as much as it should."""
        low, high = float(factors.min()), float(factors.max())
        sizes = [self.sizes[place] for place in group]
        if close(low, high):
            short, empty = len(group) < self.n and len(self.windows) > 1, low < 1 and 0 in sizes
            fix = ": divide by what it holds, not by N" if short else ""
            fix = ": micro-batches in which nothing counts are counted as if something did" if empty else fix
            which = f"update {k + 1}" + (", of a short window," if short else "")
            return "loss-scale", f"{which} is {low:.3g} times what it should be{fix}"
        each = [float(factors[owner == place].mean()) for place in group if self.sizes[place]]
        found = f"in update {k + 1} the items of its micro-batches count {rounded(each)} times what they should"
        if len(set(self.sizes)) == 1 and len(self.other_sizes) == 1:
            return "loss-scale", f"{found}: all of them must count the same"
        for what, others in self.other_sizes:
            other = [others[place] for place in group]
            shares = [o / sum(other) * sum(sizes) / s for o, s in zip(other, sizes, strict=True) if s]
            if close(each, shares):
                return "token-weights", f"{found}: {what}"
        return "token-weights", f"{found}: weight each micro-batch by the items that it holds"


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
    return f"the items count {factors} times what they should: clipping came between their backwards"


def run_on_tally(loop: Loop, sizes: Sequence[int], n: int, dirty: bool = False) -> Observed:
    """Runs two epochs of a loop on a `Tally`, with micro-batches of these sizes."""
    tally = Tally(sum(sizes)).double()
    optimizer = torch.optim.SGD(tally.parameters(), lr=0.5)
    recorder = Recorder(tally.weight, optimizer, dirty)
    for _ in range(2):
        recorder.start_epoch()
        batches = list(torch.arange(sum(sizes)).split(list(sizes)))
        loop(tally, batches, lambda model, batch: model(batch).mean(), optimizer, n)
    return recorder.observed()


def judge_updates(loop: Loop, sizes: Sequence[int], n: int, dirty: bool = False) -> None:
    """Compares each update of a loop with the large batch, for micro-batches of these sizes."""
    case = f"micro-batches of {list(sizes)} items, N = {n}" if n > 1 else f"batches of {list(sizes)} items"
    case += ", and a gradient left by an earlier backward" if dirty else ""
    Expected(sizes, n).compare(run_on_tally(loop, sizes, n, dirty), case, OLD if dirty else None)


def judge_model(
    answer: Callable[[nn.Module, Optimizer], object],
    correct: Callable[[nn.Module, Optimizer], object],
    model: nn.Module,
    make_optimizer: Callable[[Iterable], Optimizer],
    case: str,
    one: Callable[[nn.Module], Tensor] | None = None,
    factor: float = 1.5,
) -> None:
    """Trains a model twice and compares every parameter, and what was held for backward.

    Args:
        answer: Trains a model with an optimizer, by the learner's function.
        correct: Trains a model with an optimizer, as it should be.
        model: The model to begin with.
        make_optimizer: Makes an optimizer of parameters.
        case: What is tried, for the message; the optimizer's name is added.
        one: The forward pass of the largest micro-batch alone, with which memory is compared; None: it is not.
        factor: By how much more may be held than by one micro-batch.

    Raises:
        Mistake: `wrong-value` or `held-graphs`.
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


def large_batches(model: nn.Module, batches: Sequence, loss_fn: Callable, optimizer: Optimizer, n: int) -> None:
    """One large batch per window: no accumulation at all, hence nothing that could be wrong with it."""
    for window in windows(batches, n):
        optimizer.zero_grad()
        loss_fn(model, torch.cat(window)).backward()
        optimizer.step()
    optimizer.zero_grad()


def squared_error(model: nn.Module, batch: Tensor) -> Tensor:
    """The mean loss of a micro-batch whose rows hold three inputs and two targets."""
    return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])


def sgd(parameters: Iterable) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Iterable) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def judge_loop_on_model(loop: Loop, make_optimizer: Callable, n: int, sizes: Sequence[int] = (4, 4, 4, 2, 3)) -> None:
    """Compares two epochs of a loop with large batches: every parameter of a small perceptron, and memory."""
    batches = [torch.randn(size, 3 + 2, dtype=torch.float64) for size in sizes]

    def twice(loop: Loop) -> Callable[[nn.Module, Optimizer], None]:
        def train(model: nn.Module, optimizer: Optimizer) -> None:
            for _ in range(2):
                loop(model, list(batches), squared_error, optimizer, n)

        return train

    judge_model(
        twice(loop), twice(large_batches), mlp(3, 5, 2).double(), make_optimizer, f"on a real model, N = {n}",
        lambda model: squared_error(model, batches[0]),
    )  # fmt: skip


def judge_loop(loop: Loop, n_values: Sequence[int], dirty: bool = True) -> None:
    """Judges a loop that makes one update per window: on a tally, from a dirty start, and on a real model.

    Args:
        loop: The learner's: takes the model, the micro-batches of an epoch, the loss, the optimizer and N.
        n_values: The values of N. The first comes first: a bug that shows there is the one that is named.
        dirty: Whether the loop must also cope with a gradient that an earlier backward left.
    """
    # Equal sizes first: a lost tail or a tail divided by N then shows as itself.
    equal = [(sizes, n) for n in n_values for sizes in ((2, 2, 2, 2), (2, 2, 2, 2, 2, 2))]
    for sizes, n in equal + [((4, 2, 1, 3, 2), n) for n in n_values]:
        judge_updates(loop, sizes, n)
    if dirty:
        judge_updates(loop, (2, 2, 2, 2), n_values[0], dirty=True)
    for make_optimizer in (sgd, adam):
        for n in n_values:
            judge_loop_on_model(loop, make_optimizer, n)


def read_all(result: object, at_most: int) -> object:
    """What an answer returned; of a generator, which runs only when it is read, at most so many entries."""
    try:
        entries = iter(result)
    except TypeError:
        return result
    return result if isinstance(result, (str, bytes)) else list(islice(entries, at_most))
