"""Watches a training loop: which micro-batches are in each update, and how much each counts.

On a `Tally` every sample has an entry of `.grad` of its own. Each call of the loop gets samples of
its own, so whatever an update holds of another call shows. On a real model, every parameter and the
memory are compared instead.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isgenerator
from itertools import zip_longest
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_utils.exercises.judging import (
    Mistake,
    Seen,
    agree,
    changed,
    compare,
    not_attempted,
    wrong_type,
)
from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp

CLIP_RTOL = 1e-5  # PyTorch adds a millionth to the norm that it divides by; clipping by hand need not


@dataclass(frozen=True)
class Case:
    """The data, model and optimizer of one run. An exercise that has more of them adds fields.

    Args:
        calls: For each call of the loop (an epoch, or a window) the samples of its micro-batches.
        n: Micro-batches per window; 0 where a call is a window.
        dirty: Whether an earlier backward pass has left something in `.grad`.
        real: Whether the model is a small perceptron.
        adam: Whether the optimizer is Adam, and not SGD.
        factors: For some micro-batches, counted over all calls, by what their gradient is
            multiplied.
        max_norm: Where the loop is to clip.
        unit: What a micro-batch is made of.
    """

    calls: Sequence[Sequence[int]]
    n: int = 0
    dirty: bool = False
    real: bool = False
    adam: bool = False
    factors: Sequence[tuple[int, float]] = ()
    max_norm: float = inf
    unit: str = "samples"

    words = "micro-batches"  # what messages call them
    passes = 1  # over the micro-batches of a call
    may_skip = False  # whether a window may be left out
    bugs = ()  # of the exercise's own, in how much the samples of an update count; rows as in `SHARES`

    def __str__(self) -> str:
        sizes = " and ".join(dict.fromkeys(str(list(call)) for call in self.calls))
        return "".join((
            "on a real model, " * self.real,
            f"{self.words} of {sizes} {self.unit}",
            f", N = {self.n}" * (self.n > 1),
            self.more(),
            ", Adam" * self.adam,
            f", max_norm = {self.max_norm:g}" * (self.max_norm < inf),
            ", and a gradient left by an earlier backward pass" * self.dirty,
        ))  # fmt: skip

    def more(self) -> str:
        """What a message says about the fields that an exercise has added."""
        return ""


def twice(sizes: Sequence[int], n: int = 1, kind: type[Case] = Case, **more) -> Case:
    """Two epochs."""
    return kind((sizes, sizes), n, **more)


@dataclass
class Updates:
    """The use of each sample by each step of an optimizer: how much it counts."""

    case: Case
    owner: Tensor  # the micro-batch of each sample
    rows: list[Tensor] = field(default_factory=list)
    call: list[int] = field(default_factory=list)  # of the loop, in which each step came
    ran: set[int] = field(default_factory=set)  # the micro-batches through which a gradient has come back
    before: list[set[int]] = field(default_factory=list)  # of these, those before each step
    name: str = ""  # of the optimizer, where there are several

    def held(self, k: int) -> set[int]:
        """The micro-batches of an update."""
        return set(self.owner[self.rows[k] != 0].tolist())

    def compare(self, want: "Updates") -> None:
        """Raises a `Mistake` for the first update that is not as it should be."""
        if not self.rows:
            each = want.case.passes * (len(self.case.calls) if self.case.n else 1)
            of_two = f": {len(want.rows) // each} in each of two passes over the data" * (each == 2)
            expected = f"; expected {len(want.rows)} updates{of_two}."
            require_step(False, self.ran, self.name.removesuffix(": "), expected)
        for call, _ in enumerate(self.case.calls):
            mine, theirs = ([k for k, each in enumerate(one.call) if each == call] for one in (self, want))
            for k, right in zip_longest(mine, theirs):
                update = Update(self, want, k, right, call)
                _, name, text, hint = next(bug for bug in (*MEMBERS, *self.case.bugs, *SHARES) if bug[0](update))
                if name:
                    says = self.name + text.format(update).replace("micro-batch", self.case.words[:-2])
                    raise Mistake(name(update) if callable(name) else name, f"{says}.", hint)


class Update:
    """One update of an answer, beside the correct one; one of them may be missing.

    Args:
        mine: All updates of the answer.
        want: All correct updates.
        k: Its number, or None.
        right: The number of the correct one, or None.
        call: The call of the loop in which it comes.
    """

    def __init__(self, mine: Updates, want: Updates, k: int | None, right: int | None, call: int):
        self.case, self.k, self.right, self.ran = mine.case, k, right, mine.ran
        self.due = set() if right is None else want.held(right)
        self.has = set() if k is None else mine.held(k)
        self.lost, self.strangers = self.due - self.has, self.has - self.due
        self.more = len(mine.rows) - len(want.rows)
        self.epoch = " (in the second epoch)" * (call == 1 and self.case.n > 0)
        self.owed = self.numbers(self.due)
        if k is not None:
            self.row, self.before = mine.rows[k], mine.before[k]
            self.later = set().union(*map(mine.held, range(k, len(mine.rows))))
            self.name = f"update {k + 1}{self.epoch}"
            has = f"holds micro-batches {self.numbers(self.has)} instead of"
            self.instead = f"{self.name} {has if self.has else 'found no gradient of micro-batches'} {self.owed}"
        if k is not None and right is not None:
            self.want = want.rows[right]
            self.factors, owner = (self.row / self.want)[self.want != 0], mine.owner[self.want != 0]
            self.even = agree(self.factors, self.factors[:1].expand_as(self.factors), 1e-5)
            each = [self.factors[owner == place] for place in owner.unique()]
            self.sizes, self.each = [*map(len, each)], [float(factors.mean()) for factors in each]
            # with three digits, or with as many as show that they are not 1
            self.times = [float(f"{x:.3g}" if abs(x - 1) > 0.005 else f"{x:.6g}") for x in self.each]
            counts = f"the {self.case.unit} of its micro-batches count {self.times} times what they should"
            self.counts = f"in {self.name} {counts}"
            norm, limit = float(self.row.norm()), float(self.want.norm())
            self.norms = f"the norm at the step is {norm:.3g} instead of {limit:.3g} ({self.name})"

    def numbers(self, places: set[int]) -> list[int]:
        """Micro-batches as messages count them, from 1: in each epoch, or over all windows."""
        numbers = [number for call in self.case.calls for number, _ in enumerate(call, start=1)]
        return [numbers[place % len(numbers)] if self.case.n else place + 1 for place in sorted(places)]

    def limited(self, row: Tensor) -> bool:
        return agree(float(row.norm()), self.case.max_norm, 1e-3)


# A bug of an update: a condition, its name, what was seen, and a hint. The first that holds counts.
MEMBERS = (  # the micro-batches that it holds
    (lambda u: u.k is None, lambda u: "skip-rule" if u.case.may_skip else "leftover-gradients",
     "micro-batches {0.owed}{0.epoch} never get their step",
     "Which call moves the weights? Does it also come after the last micro-batches, if there are fewer than N?"),
    (lambda u: not u.row.isfinite().all(), lambda u: "unguarded-step" if u.case.factors else "nan",
     "{0.name} uses a gradient with NaN or infinity",
     "Which line should notice a gradient that is NaN or infinite, and does it run before the step?"),
    (lambda u: u.right is None and u.has, lambda u: "skip-rule" if u.case.may_skip else "irregular-window",
     "{0.name} is a step too many",
     "Count the steps, and what should get one. Is a call inside a loop that belongs after it, or there twice?"),
    (lambda u: u.right is None, "empty-step",
     "{0.name} found no gradient",
     "What is in `.grad` when `step()` runs? Print it just before."),
    (lambda u: u.case.dirty and u.row.all(), "stale-gradients",
     "the old gradient entered the first update",
     "What can be in `.grad` before your first backward pass, and which line empties it?"),
    (lambda u: u.has == u.strangers != set(),
     lambda u: "leftover-gradients" if u.more < 0 else "irregular-window" if u.more else "wrong-batches",
     "{0.instead}",
     "Print which micro-batches are in every update, by their place in the list."),
    (lambda u: u.strangers and min(u.strangers) < min(u.due), "stale-gradients",
     "{0.instead}: the others belong to earlier updates",
     "Which line empties `.grad`, and is it reached between every step and the next backward pass?"),
    (lambda u: not u.has and u.lost - u.before and u.lost <= u.ran, "empty-step",
     "{0.instead}: the step came before their backward pass",
     "Which call fills `.grad`, and does it come before the step?"),
    (lambda u: u.strangers or u.lost & u.later, "irregular-window",
     "{0.instead}",
     "Count the micro-batches before each step, and look at the first count and the last."),
    (lambda u: u.lost - u.ran, lambda u: "missing-backward" if u.has else "empty-step",
     "{0.instead}: no gradient came back through what is missing",
     "Count your calls to `backward()` in one window. Is the call inside the inner loop?"),
    (lambda u: u.lost, "discarded-gradients",
     "{0.instead}: what is missing was zeroed before the step, or multiplied by 0",
     "Which calls run between a `backward()` and the next `step()`? Does one zero `.grad`?"),
    (lambda u: agree(u.row, u.want, CLIP_RTOL), "", "", ""),
)  # fmt: skip
SHARES = (  # how much each of them counts
    (lambda u: u.limited(u.want) and u.even, "clip-timing",
     "{0.norms}",
     "Where is the norm of the whole window's gradient limited, before the step reads it?"),
    (lambda u: u.limited(u.want), "clip-timing",
     "{0.counts}: clipping came between backward passes",
     "Of which gradient should the norm be limited: a micro-batch's, or the window's?"),
    (lambda u: u.even and (u.want.norm() > 100 or u.limited(u.row)), "clip-limit",
     "{0.norms}: something limits it, although it is small enough, or has no limit",
     "Which number limits which norm? Which of your lines limits a gradient?"),
    (lambda u: max(u.each) > 100 * min(u.each) > 0, "scaler-timing",
     "{0.counts}: unscaled or rescaled inside the window",
     "Each window needs one `unscale_()` and one `update()`, both after its last backward pass."),
    (lambda u: max(abs(factor - 1) for factor in u.each) < 0.004, "low-precision",
     "{0.counts}: a factor is rounded, or was computed in a type of few digits",
     "Print the dtype of the model, of the loss and of `.grad`. Which line changes it, or rounds?"),
    (lambda u: u.even and len(u.each) < u.case.n, "loss-scale",
     "{0.name} is {0.times[0]:g} times what it should be. Fewer than N micro-batches count: divide by what it holds",
     "How many micro-batches does this update hold, and by what is each of its losses divided?"),
    (lambda u: u.even, "loss-scale",
     "{0.name} is {0.times[0]:g} times what it should be",
     "What changes the loss, or `.grad`, before the step? Over one update the factors of its losses add up to 1."),
    (lambda u: len({*u.sizes}) == 1, "loss-scale",
     "{0.counts}: all of them must count the same",
     "By what do you multiply each loss? Over one update these factors should add up to 1."),
    (lambda u: True, "token-weights",
     "{0.counts}: weight each micro-batch by the {0.case.unit} that it holds",
     "Does every sample, or token, count the same? A mean of means favours small micro-batches."),
)  # fmt: skip


@dataclass
class Weights:
    """The parameters of a model that a loop has trained."""

    values: dict[str, Tensor]

    def compare(self, want: "Weights") -> None:
        names = [*want.values]
        if not agree(*([each.values[name] for name in names] for each in (self, want)), atol=1e-7):
            off = {name: float((self.values[name] - value).abs().max()) for name, value in want.values.items()}
            name = max(off, key=off.get)
            raise Mistake("wrong-value", f"{name} ends up {off[name]:.2g} off.", WRONG_WEIGHTS)


WRONG_WEIGHTS = (
    "Where the weights stand still, or with a single parameter, your updates are right. What else does your loop do to "
    "the model, to `.grad` or to the optimizer? Does each forward pass see the weights of the last update?"
)


@dataclass
class Memory:
    """The bytes that were held for the backward pass at one time, at most."""

    peak: int

    def compare(self, want: "Memory") -> None:
        if self.peak > 1.8 * want.peak:  # a loss that is written by hand keeps more; two micro-batches, twice as much
            raise Mistake(
                "held-graphs",
                f"the updates are right, but {self.peak} bytes are kept for the backward pass at once, where one "
                f"micro-batch needs {want.peak}: call backward() before the next forward pass.",
                "What still keeps a graph after its backward pass? Look for `retain_graph`, for a sum or a list of "
                "losses, and for one `backward()` after many forward passes.",
            )


class Loop:
    """The model, data, loss and optimizer of a learner's loop, and a record of its updates."""

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
        self.note(torch.zeros(len(self.updates.owner)) if grad is None else grad.clone())

    def note(self, row: Tensor) -> None:
        """Notes an update, in which the samples count as in `row`."""
        self.updates.call.append(self.k)
        self.updates.rows.append(row)
        self.updates.before.append(set(self.updates.ran))

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
                    raise wrong_type("your function has a `yield`: it is a generator, and none of its lines has run.")
                how = how or changed(batches, self.batches(given))
        if self.case.real:
            weights = {name: p.detach() for name, p in self.model.named_parameters()}
            return {"weights": Weights(weights), "memory": Memory(saved.peak), "input": how}
        return {"updates": self.updates, "input": how}


def require_step(stepped: object, ran: object, about: str = "", end: str = ".") -> None:
    """Raises a `Mistake` where no step has used a gradient."""
    begins = f"{about}: " if about else ""
    if not stepped and ran:
        hint = "Which call moves the weights, and is it reached?"
        raise Mistake("leftover-gradients", f"{begins}no step has used a gradient{end}", hint)
    if not stepped:
        raise not_attempted(f"{begins}no backward pass and no step has run yet{end}")


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
        # Gloo's thread may still need the GIL to free its last tensors. Whoever frees the group holds
        # the GIL and waits for that thread: both would wait for ever.
        time.sleep(0.05)
        dist.destroy_process_group()


def watch_loop(answer: Callable, case: Case) -> Seen:
    """Watches a loop of a model, micro-batches, a loss and an optimizer, with N and `max_norm`."""
    loop = Loop(case)
    more = [case.n] * (case.words != "batches") + [case.max_norm] * (case.max_norm < inf)
    return loop.run(lambda batches: answer(loop.model, batches, loop.loss_fn, loop.optimizer, *more))


loops_agree = partial(compare, watch_loop)
