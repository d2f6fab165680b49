"""Watches a learner's training loop: which micro-batches are in each update, and how much each counts.

On a `Tally` every sample has an entry of `.grad` of its own. Each call of the loop gets samples of its own, so whatever
an update holds of another call shows. On a real model, every parameter and the memory are compared instead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isgenerator
from itertools import zip_longest
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.bench import Mistake, Seen, agree, changed

CLIP_RTOL = 1e-5  # PyTorch adds a millionth to the norm that it divides by; clipping by hand need not


@dataclass(frozen=True)
class Case:
    """What a loop is run on.

    Args:
        calls: For each call of the loop (an epoch, or a window) the samples of its micro-batches.
        n: Micro-batches per window; 0 where a call is a window.
        dirty: Whether an earlier backward pass has left something in `.grad`.
        real: Whether the model is a small perceptron.
        adam: Whether the optimizer is Adam, and not SGD.
        factors: For some micro-batches, counted over all calls, by what their gradient is multiplied.
        max_norm: Where the loop is to clip.
        skip_norm: Above which norm it is to leave a window out.
        scaler: The growth interval of a GradScaler; 0 for one that is switched off.
        unit: What a micro-batch is made of.
        epochs: How many of them a call makes itself.
        ranks: Which share the micro-batches of each call.
        shapes: For each micro-batch of sequences, how many targets are masked at their start, and how many are valid.
        words: What messages call a micro-batch: a batch, where a learner has not met the others yet.
    """

    calls: Sequence[Sequence[int]]
    n: int = 0
    dirty: bool = False
    real: bool = False
    adam: bool = False
    factors: Sequence[tuple[int, float]] = ()
    max_norm: float = inf
    skip_norm: float = inf
    scaler: int = 2000
    unit: str = "samples"
    epochs: int = 1
    ranks: int = 1
    shapes: Sequence = ()
    words: str = "micro-batches"

    def __str__(self) -> str:
        sizes = " and ".join(dict.fromkeys(str(list(call)) for call in self.calls))
        return "".join((
            "on a real model, " * self.real,
            f"{self.words} of {sizes} {self.unit}",
            f", N = {self.n}" * (self.n > 1),
            f", {len(self.calls[0]) // self.ranks} on each rank" * (self.ranks > 1),
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
    name: str = ""  # of the optimizer, where there are several

    def agrees(self, other: "Updates", rtol: float) -> bool:
        pairs = zip(self.rows, other.rows, strict=False)
        return self.call == other.call and all(agree(a, b, CLIP_RTOL) for a, b in pairs)

    def held(self, k: int) -> set[int]:
        """The micro-batches of an update."""
        return set(self.owner[self.rows[k] != 0].tolist())

    def difference(self, want: "Updates") -> tuple[str, str]:
        """Goes through the updates of each call, and stops at the first one that is not as it should be."""
        bug, says = "", ""
        if not self.rows:
            passes = self.case.epochs * (len(self.case.calls) if self.case.n else 1)
            each = f": {len(want.rows) // passes} in each of two passes over the data" * (passes == 2)
            bug = "leftover-gradients" if self.ran else "not-attempted"
            runs = "no step has used a gradient" if self.ran else "no backward pass and no step has run yet"
            says = f"{runs}; expected {len(want.rows)} updates{each}"
        for call, _ in enumerate(self.case.calls):
            mine, theirs = ([k for k, each in enumerate(one.call) if each == call] for one in (self, want))
            for k, right in zip_longest(mine, theirs):
                if not bug:
                    bug, says = self.compare(k, right, want, call)
        return bug, self.name + says.replace("micro-batch", self.case.words[:-2])

    def compare(self, k: int | None, right: int | None, want: "Updates", call: int) -> tuple[str, str]:
        """The mistake of the update with number `k`, which should be as `right`, and how it shows."""
        due, may_skip = set() if right is None else want.held(right), self.case.skip_norm < inf
        epoch = " (in the second epoch)" * (call == 1 and self.case.n > 0)
        if k is None:
            bug = "skip-rule" if may_skip else "leftover-gradients"
            return bug, f"micro-batches {self.numbers(due)}{epoch} never get their step"
        row, has, update = self.rows[k], self.held(k), f"update {k + 1}{epoch}"
        if not row.isfinite().all():
            return "unguarded-step" if self.case.factors else "nan", f"{update} uses a gradient with NaN or infinity"
        if right is None:
            bug = "skip-rule" if may_skip else "irregular-window"
            return (bug, f"{update} is a step too many") if has else ("empty-step", f"{update} found no gradient")
        if self.case.dirty and row.all():
            return "stale-gradients", "the old gradient entered the first update"
        lost, strangers = due - has, has - due
        holds = f"holds micro-batches {self.numbers(has)} instead of" if has else "found no gradient of micro-batches"
        instead = f"{update} {holds} {self.numbers(due)}"
        if has == strangers != set():
            more = len(self.rows) - len(want.rows)
            return "leftover-gradients" if more < 0 else "irregular-window" if more else "wrong-batches", instead
        if strangers and min(strangers) < min(due):
            return "stale-gradients", f"{instead}: the others belong to earlier updates"
        if strangers or lost & set().union(*map(self.held, range(k, len(self.rows)))):
            return "irregular-window" if has else "empty-step", instead
        if lost - self.ran:
            return (
                "missing-backward" if has else "empty-step",
                f"{instead}: no gradient came back through what is missing",
            )
        if lost:
            return "discarded-gradients", f"{instead}: what is missing was zeroed before the step, or multiplied by 0"
        same = agree(row, want.rows[right], CLIP_RTOL)
        return ("", "") if same else self.weights(update, row, want.rows[right])

    def weights(self, update: str, row: Tensor, right: Tensor) -> tuple[str, str]:
        """The mistake of an update that holds the correct micro-batches."""
        factors, owner = (row / right)[right != 0], self.owner[right != 0]
        each = [float(factors[owner == place].mean()) for place in owner.unique()]
        counts = f"in {update} the {self.case.unit} of its micro-batches count {_times(each)} times what they should"
        norms = f"the norm at the step is {float(row.norm()):.3g} instead of {float(right.norm()):.3g} ({update})"
        even = agree(factors, factors[:1].expand_as(factors), 1e-5)
        if agree(float(right.norm()), self.case.max_norm, 1e-3):
            return "clip-timing", norms if even else f"{counts}: clipping came between backward passes"
        if even and (right.norm() > 100 or agree(float(row.norm()), self.case.max_norm, 1e-3)):
            return "clip-limit", f"{norms}: something limits it, although it is small enough, or has no limit"
        if max(each) > 100 * min(each) > 0:
            return "scaler-timing", f"{counts}: unscaled or rescaled inside the window"
        if max(abs(factor - 1) for factor in each) < 0.004:
            return "low-precision", f"{counts}: a factor is rounded, or was computed in a type of few digits"
        if even:
            fix = ". Fewer than N micro-batches count: divide by what it holds" * (len(each) < self.case.n)
            return "loss-scale", f"{update} is {_times(each)[0]:g} times what it should be{fix}"
        if len({int((owner == place).sum()) for place in owner.unique()}) == 1:
            return "loss-scale", f"{counts}: all of them must count the same"
        return "token-weights", f"{counts}: weight each micro-batch by the {self.case.unit} that it holds"

    def numbers(self, places: set[int]) -> list[int]:
        """Micro-batches as messages count them, from 1: in each epoch, or over all windows."""
        numbers = [number for call in self.case.calls for number, _ in enumerate(call, start=1)]
        return [numbers[place % len(numbers)] if self.case.n else place + 1 for place in sorted(places)]


def _times(factors: Sequence[float]) -> list[float]:
    """Factors with three digits, or with as many as show that they are not 1."""
    return [float(f"{factor:.3g}" if abs(factor - 1) > 0.005 else f"{factor:.6g}") for factor in factors]


@dataclass
class Weights:
    """The parameters of a model that a loop has trained."""

    values: dict[str, Tensor]

    def agrees(self, other: "Weights", rtol: float) -> bool:
        got, want = ([each[name] for name in sorted(each)] for each in (self.values, other.values))
        return agree(got, want, rtol, 1e-7 if rtol else 0.0)  # or bit by bit

    def difference(self, want: "Weights") -> tuple[str, str]:
        off = {name: float((self.values[name] - value).abs().max()) for name, value in want.values.items()}
        name = max(off, key=off.get)
        return "", f"{name} ends up {off[name]:.2g} off"


@dataclass
class Memory:
    """The bytes that were held for the backward pass at one time, at most."""

    peak: int

    def agrees(self, other: "Memory", rtol: float) -> bool:
        return (
            self.peak <= 1.8 * other.peak
        )  # a loss that is written by hand keeps more; two micro-batches, twice as much

    def difference(self, want: "Memory") -> tuple[str, str]:
        found = f"the updates are right, but {self.peak} bytes are kept for the backward pass at once, where one"
        return "held-graphs", f"{found} micro-batch needs {want.peak}: call backward() before the next forward pass"


class Loop:
    """What a learner's loop works with, and what is seen while it runs."""

    def __init__(self, case: Case, losses: int = 1, model: nn.Module | None = None):
        sizes = [size for call in case.calls for size in call]
        self.case = case
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.factors = torch.ones(len(owner), dtype=torch.float64)
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
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        if case.adam:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        if case.dirty:
            for p in self.model.parameters():
                p.grad = torch.full_like(p, 7.0)
        self.optimizer.register_step_post_hook(self.stepped)  # after a step, to see what its closure has computed
        self.k = 0  # the call that is running

    def loss_fn(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean loss of a micro-batch."""
        if self.case.real:
            return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])
        values = model(batch)
        self.observe(model, (batch,), values)
        return values.mean()

    def observe(self, _: nn.Module, batch: tuple[Tensor], values: Tensor) -> None:
        """Sees the gradients that come back through these values."""
        if values.requires_grad:
            values.register_hook(lambda gradient: self.arrived(*batch, gradient))

    def arrived(self, batch: Tensor, gradient: Tensor) -> Tensor:
        self.updates.ran |= set(self.updates.owner[batch].flatten().tolist())
        return gradient * self.factors[batch]  # acts on the gradient alone: where it is infinite, the loss is finite

    def stepped(self, *_) -> None:
        grad = None if self.case.real else self.model.weight.grad
        self.updates.call.append(self.k)
        self.updates.rows.append(torch.zeros(len(self.updates.owner)) if grad is None else grad.clone())

    def batches(self, samples: Sequence[Tensor]) -> list:
        """The micro-batches of one call, of these samples."""
        return [each.clone() for each in samples]

    def run(self, call: Callable[[list[Tensor]], object]) -> Seen:
        """Runs the loop: `call` gives it the micro-batches of one call after the other."""
        how, left = "", self.samples
        with saved_bytes(self.model) as saved:
            for k, sizes in enumerate(self.case.calls):
                self.k, given, left = k, left[: sum(sizes)].split(list(sizes)), left[sum(sizes) :]
                batches = self.batches(given)
                if isgenerator(call(batches)):
                    raise Mistake(
                        "wrong-type",
                        "your function has a `yield`: it is a generator, and none of its lines has run.",
                    )
                how = how or changed(batches, self.batches(given))
        if self.case.real:
            weights = {name: p.detach() for name, p in self.model.named_parameters()}
            return {"weights": Weights(weights), "memory": Memory(saved.peak), "input": how}
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
    """Watches a loop that gets a model, micro-batches, a loss and an optimizer, and N and `max_norm` if it has any."""
    loop = Loop(case)
    more = [case.n] * (case.words != "batches") + [case.max_norm] * (case.max_norm < inf)
    return loop.run(lambda batches: answer(loop.model, batches, loop.loss_fn, loop.optimizer, *more))
