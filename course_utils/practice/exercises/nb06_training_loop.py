"""The exercises of notebook 06: a schedule that counts updates, and a GAN whose two updates use their own gradients."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from math import ceil, log2

import torch
from torch import Tensor, nn

from course_utils.loops import windows
from course_utils.models import Tally, mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, compare_weights, number
from course_utils.practice.updates import Expected, Observed

EQUAL, RAGGED = (2,) * 8, (4, 2, 1, 3, 2)
TAIL = (2,) * 10

# Micro-batches, N and epochs. The short window of TAIL is where a length that is rounded down shows.
CASES = (
    (EQUAL, 4, 2), (TAIL, 4, 2), (TAIL, 1, 2), (TAIL, 100, 2), (RAGGED, 2, 2), (RAGGED, 4, 3), (TAIL, 4, 1),
)  # fmt: skip

# First exercise: a training loop with a schedule that counts updates.


@exercise("scheduled")
def _scheduled(answer: Callable) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of a schedule that ticks before the first step
        for sizes, n, epochs in CASES:
            _ScheduleCase(answer, sizes, n, epochs).judge()
        _ScheduleCase(answer, EQUAL, 4, 2, dirty=True).judge()
        for n in (1, 2, 100):
            _judge_scheduled_parameters(answer, n)
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, 1 to 3 epochs, a dirty start: "
        "the schedule is as long as the training and ticks once per update."
    )


class _ScheduleCase:
    """One run on a tally, under a schedule that halves the learning rate at every tick: the rate counts the ticks."""

    def __init__(self, answer: Callable, sizes: Sequence[int], n: int, epochs: int, dirty: bool = False):
        self.sizes, self.n, self.epochs, self.dirty = sizes, n, epochs, dirty
        self.windows = ceil(len(sizes) / n)
        self.tally = Tally(sum(sizes)).double()
        self.rows: list[Tensor] = []  # how much each item counts, for each update
        self.ticks: list[float] = []  # how often the schedule had ticked before it
        self.lengths: list[float] = []  # for how many updates a schedule was made
        self.in_first_epoch: int | None = None
        self.forwards = 0
        arrived: list[Tensor] = []
        if dirty:
            self.tally.weight.grad = torch.full_like(self.tally.weight, 7.0)
        optimizer = torch.optim.SGD(self.tally.parameters(), lr=1.0)
        optimizer.register_step_pre_hook(self.note)
        self.tally.weight.register_post_accumulate_grad_hook(arrived.append)
        batches = list(torch.arange(sum(sizes)).split(list(sizes)))
        answer(self.tally, batches, self.loss, optimizer, n, epochs, self.make_scheduler)
        self.arrived = len(arrived)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        if self.forwards == len(self.sizes):  # the second epoch begins
            self.in_first_epoch = len(self.rows)
        self.forwards += 1
        return model(batch).mean()

    def make_scheduler(self, optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
        self.lengths.append(number(updates))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda ticks: 0.5**ticks)

    def note(self, optimizer: torch.optim.Optimizer, *_) -> None:
        grad, rate = self.tally.weight.grad, optimizer.param_groups[0]["lr"]
        self.rows.append(torch.zeros_like(self.tally.weight) if grad is None else grad.detach().clone())
        self.ticks.append(0 - log2(rate) if rate > 0 else float("inf"))  # 0 - 0.0 is 0, and -0.0 would print as -0

    def judge(self) -> None:
        case = f"micro-batches of {list(self.sizes)} items, N = {self.n}, {self.epochs} epochs"
        case += ", and a gradient left by an earlier backward" if self.dirty else ""
        if not self.arrived and not self.rows:
            raise _nothing_ran(case, self.n)
        self.judge_windows(case)
        self.judge_length(case)
        self.judge_ticks(case)

    def judge_windows(self, case: str) -> None:
        wanted = []
        for window in windows(torch.arange(sum(self.sizes)).split(list(self.sizes)), self.n):
            wanted.append(torch.zeros_like(self.tally.weight))
            wanted[-1][torch.cat(window)] = 1 / len(torch.cat(window))
        wanted *= self.epochs
        if len(self.rows) == len(wanted) and close(self.rows, wanted):
            return
        if self.dirty and self.rows and close(self.rows[0], wanted[0] + 7):
            raise Mistake("stale-gradients", f"{case}: the old gradient entered the first update. Zero once before it.")
        if self.epochs > 1 and self.forwards == len(self.sizes) and len(self.rows) == self.windows:
            raise Mistake("wrong-length", f"{case}: {len(self.rows)} updates have run, as many as in one epoch.")
        if self.epochs != 2:
            raise Mistake("wrong-value", f"{case}: right for two epochs, but not for {self.epochs}.")
        in_first_epoch = len(self.rows) if self.in_first_epoch is None else self.in_first_epoch
        observed = Observed(self.rows, in_first_epoch, self.arrived, len(self.rows))
        bug, hint = Expected(self.sizes, self.n).diagnose(observed)
        raise Mistake(bug, f"{case}: {hint}.")

    def judge_length(self, case: str) -> None:
        micro_batches, updates = len(self.sizes), self.windows * self.epochs
        if not self.lengths:
            raise Mistake("scheduler-cadence", f"{case}: no schedule was made, so the rate never changes.")
        if len(self.lengths) > 1:
            times = f"{len(self.lengths)} times"
            raise Mistake("scheduler-cadence", f"{case}: the schedule was made {times}, and begins anew each time.")
        length = self.lengths[0]
        if length == updates:
            return
        hints = {  # where two fit, the second is meant
            ceil(micro_batches * self.epochs / self.n): "a window never spans two epochs",
            micro_batches // self.n * self.epochs: "the short window of each epoch makes an update too",
            self.windows: "that is one epoch",
            micro_batches: "these are the micro-batches of one epoch",
            micro_batches * self.epochs: "that counts micro-batches",
        }
        hint = hints.get(length, "count the windows of an epoch, the short one too, and multiply by the epochs")
        raise Mistake("wrong-length", f"{case}: a schedule for {length:g} updates, {updates} will run; {hint}.")

    def judge_ticks(self, case: str) -> None:
        right = list(range(self.windows * self.epochs))
        ticks = [round(count, 6) for count in self.ticks]
        if ticks == right:
            return
        found = f"{case}: ticks of the schedule before each update {[f'{t:g}' for t in ticks]}".replace("'", "")
        found += f", expected {right}"
        steps = {after - before for before, after in pairwise(ticks)}
        if set(ticks) == {0}:
            hint = "it never ticks"
        elif ticks[0] == 1 and steps <= {1}:
            hint = "the first update should use the first rate: tick after the step"
        elif ticks == [k // self.windows for k in right]:
            hint = "it ticks once per epoch"
        elif max(ticks) > right[-1]:
            hint = "it ticks more often than the optimizer steps"
        else:
            hint = "one tick should follow each step"
        raise Mistake("scheduler-cadence", f"{found}: {hint}.")


def _nothing_ran(case: str, n: int) -> Mistake:
    if n == 100:  # other cases have gone well
        return Mistake("leftover-gradients", f"{case}: the only window of an epoch is short, and no step has run.")
    return Mistake("not-attempted", f"{case}: no backward and no step has run yet.")


def _judge_scheduled_parameters(answer: Callable, n: int) -> None:
    """Every parameter of a real model, under a schedule that falls to 0."""
    batches = [torch.randn(size, 3 + 2, dtype=torch.float64) for size in RAGGED]
    ours = mlp(3, 4, 2).double()
    theirs = copy.deepcopy(ours)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])

    def make_scheduler(optimizer, updates):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=int(number(updates)))

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    scheduler = make_scheduler(optimizer, 2 * ceil(len(batches) / n))
    for window in [*windows(batches, n)] * 2:
        optimizer.zero_grad()
        loss_fn(ours, torch.cat(window)).backward()
        optimizer.step()
        scheduler.step()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    answer(theirs, list(batches), loss_fn, optimizer, n, 2, make_scheduler)
    _compare(ours, theirs, f"on a real model, N = {n}, 2 epochs")


def _compare(ours: nn.Module, theirs: nn.Module, case: str) -> None:
    compare_weights(ours, theirs, case)


# Second exercise: the two updates of a GAN, with accumulation.


@exercise("gan_updates")
def _gan_updates(answer: Callable) -> str:
    for sizes in (EQUAL[:4], RAGGED):
        for n in (2, 4, 1, 100):
            _GanCase(answer, sizes, n).judge()
    _GanCase(answer, EQUAL, 2, dirty=True).judge()
    for n in (1, 2, 4, 100):
        _judge_gan_parameters(answer, n)
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, networks that were used before: "
        "each update holds its own loss's gradient and nothing else."
    )


NAMES = ("discriminator", "generator")


class _GanCase:
    """Two networks whose gradients can be read. In each, weight `i` belongs to item `i` of its own loss, and weight
    `items + i` to item `i` of the other network's loss: what arrives there is foreign."""

    def __init__(self, answer: Callable, sizes: Sequence[int], n: int, dirty: bool = False):
        self.sizes, self.n, self.dirty, self.items = sizes, n, dirty, sum(sizes)
        self.nets = {name: Tally(2 * self.items).double() for name in NAMES}
        self.optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.5) for name, net in self.nets.items()}
        self.epochs: dict[str, list[list[Tensor]]] = {name: [] for name in NAMES}
        self.arrived = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            self.watch(name)
        for _ in range(2):
            for name in NAMES:
                self.epochs[name].append([])
            batches = list(torch.arange(self.items).split(list(sizes)))
            nets, losses = (list(reversed(self.nets.values())), [self.loss_of(name) for name in NAMES[::-1]])
            try:
                answer(*nets, batches, *losses, *reversed(self.optimizers.values()), n)
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
                raise Mistake("orphan-parameters", f"{self.case}: both networks are frozen in a backward.") from None

    def watch(self, name: str) -> None:
        weight = self.nets[name].weight
        if self.dirty:
            weight.grad = torch.full_like(weight, 7.0)

        def note(*_) -> None:
            if not weight.requires_grad and (weight.grad is None or not weight.grad[: self.items].any()):
                hint = "it is still frozen when its optimizer steps: let it learn again after the other's backward"
                raise Mistake("orphan-parameters", f"{self.case}: the {name}: {hint}.")
            self.epochs[name][-1].append(
                torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().clone()
            )

        def count(_: Tensor) -> None:
            self.arrived[name] += 1

        self.optimizers[name].register_step_pre_hook(note)
        weight.register_post_accumulate_grad_hook(count)

    def loss_of(self, name: str) -> Callable[[Tensor], Tensor]:
        own, other = (self.nets[key] for key in (NAMES if name == NAMES[0] else NAMES[::-1]))
        return lambda batch: (own(batch) + other(batch + self.items)).mean()

    @property
    def case(self) -> str:
        case = f"micro-batches of {list(self.sizes)} items, N = {self.n}"
        return case + (", and networks that were used before" if self.dirty else "")

    def judge(self) -> None:
        if not any(self.arrived.values()) and not any(row for name in NAMES for row in self.epochs[name]):
            raise _nothing_ran(self.case, self.n)
        rows = {name: [row for epoch in self.epochs[name] for row in epoch] for name in NAMES}
        wanted = self.wanted()
        for name in NAMES:
            self.judge_own(name, [row[: self.items] for row in rows[name]], wanted)
        for name, other in zip(NAMES, NAMES[::-1], strict=True):
            for k, row in enumerate(rows[name]):
                if row[self.items :].any():
                    hint = f"update {k + 1} of the {name} holds gradients of the {other}'s loss"
                    raise Mistake("foreign-gradients", f"{self.case}: {hint}.")
        for name in NAMES:
            if not self.nets[name].weight.requires_grad:
                raise Mistake("orphan-parameters", f"{self.case}: the {name} is left frozen at the end.")

    def wanted(self) -> list[Tensor]:
        rows = []
        for window in windows(torch.arange(self.items).split(list(self.sizes)), self.n):
            rows.append(torch.zeros(self.items, dtype=torch.float64))
            rows[-1][torch.cat(window)] = 1 / len(torch.cat(window))
        return rows * 2

    def judge_own(self, name: str, rows: list[Tensor], wanted: list[Tensor]) -> None:
        if len(rows) == len(wanted) and close(rows, wanted):
            return
        if self.dirty and rows and close(rows[0], wanted[0] + 7):
            hint = "an old gradient entered its first update. Zero before the first backward, too"
            raise Mistake("stale-gradients", f"{self.case}: the {name}: {hint}.")
        in_first_epoch = len(self.epochs[name][0])
        observed = Observed(rows, in_first_epoch, self.arrived[name], len(rows))
        bug, hint = Expected(self.sizes, self.n).diagnose(observed)
        raise Mistake(bug, f"{self.case}: the {name}: {hint}.")


def _judge_gan_parameters(answer: Callable, n: int) -> None:
    """Every parameter of two real networks, and in which order the two updates came."""
    batches = [torch.randn(size, 3 + 2, dtype=torch.float64) for size in RAGGED]  # three real numbers, two of noise
    ours = nn.ModuleList([mlp(2, 4, 3), mlp(3, 4, 1)]).double()
    theirs = copy.deepcopy(ours)
    _large_batch_gan(*_gan_arguments(ours, batches, n))
    arguments, order = _gan_arguments(theirs, batches, n), []
    for letter, optimizer in zip("GD", arguments[5:7], strict=True):
        optimizer.register_step_pre_hook(lambda *_, letter=letter: order.append(letter))
    arguments[3:5] = [_noting(loss, letter, order) for loss, letter in zip(arguments[3:5], "gd", strict=True)]
    answer(*arguments)
    case = f"on real networks, N = {n}"
    try:
        _compare(ours, theirs, case)
    except Mistake:
        if "".join(letter for letter, _ in groupby(order)) != "dDgG" * ceil(len(batches) / n):
            hint = "in each window the discriminator's loss and its step come first, the generator's after it"
            raise Mistake("wrong-order", f"{case}: the updates are not in turn: {hint}.") from None
        raise


def _noting(loss: Callable, letter: str, order: list[str]) -> Callable:
    def noted(batch: Tensor) -> Tensor:
        order.append(letter)
        return loss(batch)

    return noted


def _gan_arguments(nets: nn.ModuleList, batches: list[Tensor], n: int) -> list:
    generator, discriminator = nets
    soft = nn.functional.softplus

    def g_loss(batch: Tensor) -> Tensor:
        return soft(-discriminator(generator(batch[:, 3:]))).mean()

    def d_loss(batch: Tensor) -> Tensor:
        return (soft(discriminator(generator(batch[:, 3:]))) + soft(-discriminator(batch[:, :3]))).mean()

    g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9)
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=0.01)
    return [generator, discriminator, list(batches), g_loss, d_loss, g_optimizer, d_optimizer, n]


def _large_batch_gan(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n) -> None:
    """One large batch per window, and every gradient taken for its own parameters alone."""
    for window in windows(batches, n):
        for net, loss, optimizer in ((discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)):
            for p, gradient in _gradients(net, loss(torch.cat(window))):
                p.grad = gradient
            optimizer.step()


def _gradients(net: nn.Module, loss: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    parameters = list(net.parameters())
    return zip(parameters, torch.autograd.grad(loss, parameters), strict=True)
