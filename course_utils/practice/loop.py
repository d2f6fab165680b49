"""Watches a learner's training loop: which micro-batches are in each update, and how much each counts.

On a `Tally` every sample has an entry of `.grad` of its own. Each call of the loop gets samples of its own, so whatever
an update holds of another call shows. On a real model, every parameter and the memory are compared instead.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isgenerator
from itertools import chain
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.bench import ROUNDED, RTOL, Mistake, Seen, agree, changed

OLD = 7.0  # every entry of the gradient that an earlier backward pass has left, in a case that starts dirty
QUIET, LOUD = 2.0**-10, 2.0**10  # a power of two leaves no trace
CLIP_RTOL = 1e-4  # PyTorch adds a millionth to the norm that it divides by; clipping by hand need not

Signs = Iterator[tuple[object, str, str]]  # whether a mistake shows, its name, and how; asked if none before it shows


@dataclass(frozen=True)
class Case:
    """What a loop is run on.

    Args:
        calls: For each call of the loop (an epoch, or a window) the samples of its micro-batches.
        n: Micro-batches per window; 0 where a call is a window.
        dirty: Whether an earlier backward pass has left something in `.grad`.
        real: Whether the model is a small perceptron.
        adam: Whether the optimizer is Adam, and not SGD.
        gain: By what each gradient is multiplied.
        factors: For some micro-batches, counted over all calls, by what theirs is multiplied besides.
        max_norm: Where the loop is to clip.
        skip_norm: Above which norm it is to leave a window out.
        scaler: The growth interval of a GradScaler; 0 for one that is switched off.
        unit: What a micro-batch is made of.
    """

    calls: Sequence[Sequence[int]]
    n: int = 0
    dirty: bool = False
    real: bool = False
    adam: bool = False
    gain: float = 1.0
    factors: Sequence[tuple[int, float]] = ()
    max_norm: float = inf
    skip_norm: float = inf
    scaler: int = 2000
    unit: str = "samples"
    words: str = "micro-batches"  # or batches, where a learner has not met the others yet

    @property
    def places(self) -> list[tuple[int, int]]:
        """For each micro-batch its call, and its number there, from 1."""
        return [(k, number) for k, call in enumerate(self.calls) for number, _ in enumerate(call, start=1)]

    def __str__(self) -> str:
        sizes = " and ".join(dict.fromkeys(str(list(call)) for call in self.calls))
        return "".join((
            "on a real model, " * self.real,
            f"{self.words} of {sizes} {self.unit}",
            f", N = {self.n}" * (self.n > 1),
            ", Adam" * self.adam,
            f", max_norm = {self.max_norm:g}" * (self.max_norm < inf),
            f", skip_norm = {self.skip_norm:g}" * (self.skip_norm < inf),
            ", a scaler that is switched off" * (not self.scaler),
            ", and a gradient left by an earlier backward pass" * self.dirty,
        ))  # fmt: skip


def twice(sizes: Sequence[int], n: int = 1, **more) -> Case:
    """Two epochs."""
    return Case((sizes, sizes), n, **more)


@dataclass
class Updates:
    """What each step of an optimizer used: how much every sample counts."""

    case: Case
    owner: Tensor  # the micro-batch of each sample
    rows: list[Tensor] = field(default_factory=list)
    call: list[int] = field(default_factory=list)  # of the loop, in which each step came
    ran: set[int] = field(default_factory=set)  # the micro-batches through which a gradient has come back
    moved: bool = False  # whether any of these gradients was more than zeros
    early: bool = False  # whether the first step came before them all
    idle: int = 0  # steps that found no gradient, where these do not count
    name: str = ""  # of the optimizer, where there are several

    def agrees(self, other: "Updates", rtol: float) -> bool:
        pairs = zip(self.rows, other.rows, strict=False)
        return self.call == other.call and all(agree(a, b, self.tolerance(b)) for a, b in pairs)

    def tolerance(self, right: Tensor) -> float:
        """Of an update, whose gradient may have been clipped."""
        return CLIP_RTOL if agree(float(right.norm()), self.case.max_norm, 1e-3) else RTOL

    def difference(self, want: "Updates") -> tuple[str, str]:
        used, wanted = self.members(), want.members()
        held = f"micro-batches per update: {[*map(len, used)]}, expected {[*map(len, wanted)]}"
        many = f"{len(want.rows)} update{'s' * (len(want.rows) != 1)}"
        if self.case.n and len(self.case.calls) > 1:
            passes = {2: "two", 3: "three"}[len(self.case.calls)]
            many = f"{many}: {want.call.count(0)} in each of {passes} passes over the data"
            held = f"{held} ({many})"
        for shows, bug, says in chain(self.missing(want, used, wanted), self.counts(want, used, wanted)):
            if shows:
                return bug, self.said(f"{says}; {held if any(used) else f'expected {many}'}")
        for shows, bug, says in self.items(want, used, wanted):
            if shows:
                return bug, self.said(says)
        return "wrong-value", "the updates are not those of the large batch"

    def said(self, text: str) -> str:
        if self.case.words == "batches":
            text = text.replace("last window, micro-batches", "last batch,").replace("window", "batch")
        return self.name + text.replace("micro-batch", self.case.words[:-2])

    def members(self) -> list[list[int]]:
        """The micro-batches of each update."""
        return [self.owner[row != 0].unique().tolist() for row in self.rows]

    def missing(self, want: "Updates", used: list, wanted: list) -> Signs:
        """Where nothing runs, or nothing arrives."""
        zeroed = "found no gradient. Something zeroes between backward() and step()"
        yield not self.ran and not self.rows, "not-attempted", "no backward pass and no step has run yet"
        nan = any(row.isnan().any() for row in self.rows) and not self.case.factors
        yield nan, "nan", "a gradient is NaN. A mean over nothing is 0/0"
        yield want.rows and not self.rows and self.idle, "discarded-gradients", f"every step {zeroed}"
        yield want.rows and not self.rows, "leftover-gradients", "no optimizer.step() has run"
        nothing = not any(used) and any(wanted)
        yield nothing and not self.ran, "empty-step", "every step found no gradient: no backward pass has run"
        silent = "every gradient is zero: the loss is multiplied by 0, or divided by // instead of /"
        yield nothing and not self.moved, "loss-scale", silent
        yield nothing, "discarded-gradients", f"every step {zeroed}"
        empty = "a step found no gradient. Zeros still move the weights under momentum or Adam"
        yield [] in used and (self.early or len(used) != len(wanted)), "empty-step", empty
        none = [group for mine, group in zip(used, wanted, strict=False) if not mine and group]
        yield none and self.ran.isdisjoint(none[0]), "missing-backward", "no micro-batch of an update ran backward"
        yield none, "discarded-gradients", f"a step {zeroed}"

    def counts(self, want: "Updates", used: list, wanted: list) -> Signs:
        """Where a call has steps too few or too many."""
        for k in () if self.case.n else range(len(self.case.calls)):
            rows = [row for row, call in zip(self.rows, self.call, strict=True) if call == k]
            extra, broken = rows and k not in want.call, not all(row.isfinite().all() for row in rows)
            made = f"window {k + 1} should be left out, and its step has been made"
            off = f"{made}. A scaler that is switched off leaves nothing out"
            yield extra and broken and not self.case.scaler, "unguarded-step", off
            yield extra and broken, "scaler-timing", f"{made}. scaler.step() would have left it out"
            yield extra, "skip-rule", f"{made}. Its norm is above skip_norm"
            bug = "skip-rule" if self.case.skip_norm < inf else "leftover-gradients"
            yield k in want.call and not rows, bug, f"window {k + 1} should make an update, and no step has run"
        for k in dict.fromkeys(want.call):
            mine, theirs = ([m for m, call in zip(*pair, strict=True) if call == k]
                            for pair in ((used, self.call), (wanted, want.call)))  # fmt: skip
            order = [*chain(*theirs)]
            each = len(mine) > len(theirs) and all(len(group) == 1 for group in mine)
            yield each and len(mine) == len(order), "irregular-window", "a step after every micro-batch"
            absent = sorted(set(order) - self.ran)
            rest = all(set(group) <= set(other) for group, other in zip(mine, theirs, strict=False))
            never = f"micro-batches {self.shown(absent)} never get a backward pass"
            yield absent and rest and len(mine) == len(theirs), "missing-backward", never
            old = self.case.dirty and self.rows[0].all()  # counts as every micro-batch
            early = mine and not old and mine[0] != theirs[0] and mine[0] == order[: len(mine[0])]
            count = f"the first step comes after micro-batch {len(mine and mine[0])} instead of {len(theirs[0])}"
            yield early, "irregular-window", count
            only_first = mine == theirs[:1] and len(theirs) > 2 and len(theirs[-1]) == len(theirs[0])
            ends = "the loop ends after its first update"
            yield only_first and not self.ran & set(theirs[-1]), "irregular-window", ends
            stuck = "only the first window gets a step, as if a counter were never set back"
            yield only_first, "not-reset", stuck
            last = f"the last window, micro-batches {self.shown(theirs[-1])}, never gets its step"
            lost = len(mine) < len(theirs) and not set(theirs[-1]) & set(chain(*mine))
            yield lost, "leftover-gradients", last
            yield len(mine) != len(theirs), "irregular-window", f"updates: {len(mine)}, expected {len(theirs)}"
        yield len(self.rows) != len(want.rows), "irregular-window", f"updates: {len(used)}, expected {len(wanted)}"

    def items(self, want: "Updates", used: list, wanted: list) -> Signs:
        """Where an update holds other micro-batches, or they count too much or too little."""
        first = "the old gradient entered the first update"
        yield self.case.dirty and self.rows[0].all(), "stale-gradients", first
        for k, (row, right) in enumerate(zip(self.rows, want.rows, strict=True)):
            strangers, update = sorted(set(used[k]) - set(wanted[k])), self.update(k)
            instead = f"{update} holds micro-batches {self.shown(used[k])} instead of {self.shown(wanted[k])}"
            later = strangers and strangers[-1] > wanted[k][-1]
            yield later and set(wanted[k]) <= set(used[k]), "irregular-window", instead
            yield later or (strangers and not set(used[k]) & set(wanted[k])), "wrong-batches", instead
            earlier = f"{update} still holds gradients of earlier updates (micro-batches {self.shown(strangers)})"
            yield strangers, "stale-gradients", earlier
            rest = f"{update} holds micro-batches {self.shown(used[k])} of {self.shown(wanted[k])}"
            yield set(wanted[k]) - self.ran - set(used[k]), "missing-backward", f"{rest}: the others never ran backward"
            yield used[k] != wanted[k], "discarded-gradients", f"{rest}: the rest was zeroed inside the window"
            yield not agree(row, right, self.tolerance(right)), *self.weights(k, row, right)

    def weights(self, k: int, row: Tensor, right: Tensor) -> tuple[str, str]:
        """The mistake of an update that holds the correct micro-batches."""
        factors, owner, update = (row / right)[right != 0], self.owner[right != 0], self.update(k)
        each = [float(factors[owner == place].mean()) for place in owner.unique()]
        counts = f"in {update} the {self.case.unit} of its micro-batches count {_times(each)} times what they should"
        norms = f"the norm at the step is {float(row.norm()):.3g} instead of {float(right.norm()):.3g}"
        even = agree(factors, factors[:1].expand_as(factors), 1e-5)
        if agree(float(right.norm()), self.case.max_norm, 1e-3):
            return "clip-timing", f"{norms} ({update})" if even else f"{counts}: clipping came between backward passes"
        if even and agree(float(row.norm()), self.case.max_norm, 1e-3):
            return "clip-limit", f"{norms} ({update}): clipping never makes a norm larger"
        if self.case.gain > 1:
            return "clip-limit", f"{counts}. With tiny gradients all updates are right, so something limits large ones"
        if max(each) > 100 * min(each) > 0:
            return "scaler-timing", f"{counts}: unscaled or rescaled inside the window"
        if max(abs(factor - 1) for factor in each) < ROUNDED:
            return "low-precision", f"{counts}: a factor is rounded, or was computed in a type of few digits"
        if even:
            window, full = owner.unique().tolist(), self.case.n
            short = ", of a short window," if len(window) < full else ""
            fix = ": divide by what it holds, not by N" if short else ""
            return "loss-scale", f"{update}{short} is {_times(each)[0]:g} times what it should be{fix}"
        if len({int((owner == place).sum()) for place in owner.unique()}) == 1:
            return "loss-scale", f"{counts}: all of them must count the same"
        return "token-weights", f"{counts}: weight each micro-batch by the {self.case.unit} that it holds"

    def update(self, k: int) -> str:
        return f"update {k + 1}" + " (in the second epoch)" * (self.call[k] == 1 and self.case.n > 0)

    def shown(self, places: Sequence[int]) -> list[int]:
        """Micro-batches as messages count them: from 1 in each call."""
        return [self.case.places[place][1] for place in places]


def _times(factors: Sequence[float]) -> list[float]:
    """Factors with three digits, or with as many as show that they are not 1."""
    return [float(f"{factor:.3g}" if abs(factor - 1) > 0.005 else f"{factor:.6g}") for factor in factors]


@dataclass
class Weights:
    """The parameters of a model that a loop has trained."""

    values: dict[str, Tensor]

    def agrees(self, other: "Weights", rtol: float) -> bool:
        atol = 1e-7 if rtol else 0.0  # or bit by bit
        return self.values.keys() == other.values.keys() and all(
            agree(self.values[name], value, rtol, atol) for name, value in other.values.items()
        )

    def difference(self, want: "Weights") -> tuple[str, str]:
        name = max(want.values, key=lambda name: float((self.values[name] - want.values[name]).abs().max()))
        got, right = self.values[name], want.values[name]
        off = f"{name} ends up {float((got - right).abs().max()):.2g} off"
        if got.dtype != right.dtype or agree(got, right, 1e-4, 1e-5):
            return "low-precision", f"{off}, as if computed in float32, or rounded"
        return "", off


@dataclass
class Gradient:
    """The gradient of one update of a real model."""

    value: Tensor | None

    def agrees(self, other: "Gradient", rtol: float) -> bool:
        return agree(self.value, other.value, rtol)

    def difference(self, want: "Gradient") -> tuple[str, str]:
        if self.value is None:
            return "empty-step", "the step found no gradient"
        if self.value.isnan().any():
            return "nan", "the gradient holds NaN"
        ratio = float(self.value @ want.value / (want.value @ want.value))
        if ratio > 0 and agree(self.value, want.value * ratio):
            return "loss-scale", f"the update is {_times([ratio])[0]:g} times what it should be"
        return "token-weights", "in the update some count more than others"


@dataclass
class Memory:
    """The bytes that were held for the backward pass at one time, at most."""

    peak: int
    factor: float  # by how much they may exceed those of the solution

    def agrees(self, other: "Memory", rtol: float) -> bool:
        return self.peak <= other.peak * self.factor

    def difference(self, want: "Memory") -> tuple[str, str]:
        found = f"the updates are right, but {self.peak} bytes are kept for the backward pass at once, where one"
        return "held-graphs", f"{found} micro-batch needs {want.peak}: call backward() before the next forward pass"


class Loop:
    """What a learner's loop works with, and what is seen while it runs."""

    skip_idle = False  # whether a step without any gradient, which moves nothing, counts as none

    def __init__(
        self,
        case: Case,
        memory: float = 1.5,
        once: bool = False,
        losses: int = 1,
        model: nn.Module | None = None,
        lr: float = 0.5,
    ):
        sizes = [size for call in case.calls for size in call]
        self.case, self.memory = case, memory
        self.once, self.passes = once, Counter()  # whether the loop itself runs all epochs, and of each micro-batch
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.factors = torch.full((len(owner),), case.gain, dtype=torch.float64)
        for place, factor in case.factors:
            self.factors[owner == place] *= factor
        # Where several losses reach a model, each has an entry of its own for every sample.
        self.updates = Updates(case, torch.cat([owner + place * len(sizes) for place in range(losses)]))
        if case.real:
            self.model = model or mlp(3, 5, 2).double()
            self.samples = torch.randn(len(owner), 3 + 2, dtype=torch.float64) * self.factors[:, None]
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        else:
            self.model = model or Tally(losses * len(owner)).double()
            self.samples = torch.arange(len(owner))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        if case.adam:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        if case.dirty:
            for p in self.model.parameters():
                p.grad = torch.full_like(p, OLD * case.gain)
        self.optimizer.register_step_post_hook(self.stepped)  # after a step, to see what its closure has computed
        self.k = 0  # the call that is running

    def loss_fn(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean loss of a micro-batch."""
        if self.case.real:
            return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])
        if self.once:  # each pass over the micro-batches gets samples of its own
            passed = min(self.passes[int(batch.min())], len(self.case.calls) - 1)
            batch = batch + passed * sum(self.case.calls[0])
        values = model(batch)
        self.observe(model, (batch,), values)
        return values.mean()

    def observe(self, _: nn.Module, batch: tuple[Tensor], values: Tensor) -> None:
        """Sees the gradients that come back through these values."""
        if values.requires_grad:
            values.register_hook(lambda gradient: self.arrived(*batch, gradient))

    def arrived(self, batch: Tensor, gradient: Tensor) -> Tensor:
        self.note(batch, gradient)
        return gradient * self.factors[batch]  # acts on the gradient alone: where it is infinite, the loss is finite

    def note(self, batch: Tensor, gradient: Tensor) -> None:
        """A gradient has come back through these samples."""
        self.updates.ran |= set(self.updates.owner[batch].flatten().tolist())
        self.updates.moved = self.updates.moved or bool(gradient.any())
        if self.once:
            passed, first = divmod(int(batch.min()), sum(self.case.calls[0]))
            self.passes[first], self.k = passed + 1, passed

    def stepped(self, *_) -> None:
        grad = None if self.case.real else self.model.weight.grad
        if grad is None and self.skip_idle:
            self.updates.idle += 1
            return
        self.updates.early = self.updates.early or not self.updates.ran
        self.updates.call.append(self.k)
        self.updates.rows.append(
            torch.zeros(len(self.updates.owner)) if grad is None else grad.detach() / self.case.gain
        )

    def run(self, call: Callable[[list[Tensor]], object]) -> Seen:
        """Runs the loop: `call` gives it the micro-batches of one call after the other."""
        how = ""
        left = self.samples
        with saved_bytes(self.model) as saved:
            for k, sizes in enumerate(self.case.calls[:1] if self.once else self.case.calls):
                self.k, given = k, left[: sum(sizes)].split(list(sizes))
                left, batches = left[sum(sizes) :], [batch.clone() for batch in given]
                if isgenerator(call(batches)):
                    hint = "your function has a `yield`, so none of its lines has run: it is a generator."
                    raise Mistake("wrong-type", hint)
                how = how or changed(batches, list(given))
        if self.case.real:
            weights = {name: p.detach() for name, p in self.model.named_parameters()}
            return {"weights": Weights(weights), "memory": Memory(saved.peak, self.memory), "input": how}
        return {"updates": self.updates, "input": how}


def require_step(stepped: object, ran: object, about: str = "") -> None:
    """Raises a `Mistake` where no step has run, and says whether a backward pass has."""
    if not stepped:
        bug = "leftover-gradients" if ran else "not-attempted"
        begins = f"{about}: " if about else ""
        raise Mistake(bug, f"{begins}{'no backward pass and ' * (not ran)}no step has run yet.")


@contextmanager
def one_rank() -> Iterator[None]:
    """A group of this process alone, unless it is in a group already."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def watch_loop(answer: Callable, case: Case) -> Seen:
    """Watches a loop that gets a model, micro-batches, a loss, an optimizer, and N unless it has none."""
    loop = Loop(case)
    n = () if case.words == "batches" else (case.n,)
    return loop.run(lambda batches: answer(loop.model, batches, loop.loss_fn, loop.optimizer, *n))
