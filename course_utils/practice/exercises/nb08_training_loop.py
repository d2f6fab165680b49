"""The exercises of notebook 08: a schedule that counts updates, and a GAN whose two updates use their own gradients."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from math import ceil, inf, log2

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler

from course_utils.loops import windows
from course_utils.memory import SavedBytes, saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, compare_memory, compare_weights, number
from course_utils.practice.updates import (
    OLD,
    Expected,
    Observed,
    Recorder,
    judge_model,
    large_batches,
    random_batches,
    recorded_tally,
    sgd,
    squared_error,
)

QUIET, LOUD = 2.0**-10, 2.0**10  # by what losses are multiplied: a power of two leaves no trace
EQUAL, TAIL, RAGGED = (2,) * 8, (2,) * 10, (4, 2, 1, 3, 2)

# First exercise: a training loop with a schedule that counts updates.

# Micro-batches, N and epochs. The short window of TAIL is where a length that is rounded down shows.
CASES = (
    (EQUAL[:6], 2, 2), (TAIL, 4, 2), (TAIL, 1, 2), (TAIL, 100, 2), (RAGGED, 2, 2), (RAGGED, 4, 3), (TAIL, 4, 1),
)  # fmt: skip


@exercise(
    "scheduled",
    hints={
        "wrong-length": "Count the windows of one epoch first, the short one too. No window spans two epochs.",
        "scheduler-cadence": "The scheduler steps before each update should be 0, 1, 2, ... Is yours inside the loop "
        "over micro-batches, before the optimizer's step, or in the loop over epochs?",
        "clip-limit": "The task asks for no clipping. Which of your lines limits a gradient?",
        "empty-step": "A step must not run on an empty .grad. Does something hide an error in your forward or backward "
        "pass?",
    },
)
def _scheduled(answer: Callable) -> str:
    for sizes, n, epochs in CASES:
        _judge_schedule(answer, sizes, n, epochs)
    _judge_schedule(answer, EQUAL, 4, 2, dirty=True)
    _judge_loud(partial(_judge_schedule, answer, RAGGED, 2, 1))
    for n in (1, 2, 100):
        _judge_scheduled_model(answer, n)
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, 1 to 3 epochs, a dirty start: "
        "the schedule is as long as the training and steps once per update."
    )


def _judge_schedule(
    answer: Callable, sizes: Sequence[int], n: int, epochs: int, dirty: bool = False, loud: float = QUIET
) -> None:
    """Judges one run on a tally, whose loss is multiplied by `loud`.

    Its schedule halves the learning rate, which so counts the scheduler's steps.
    """
    tally, optimizer, recorder = recorded_tally(sum(sizes), 1.0, dirty)
    recorder.start_epoch()
    forwards, lengths, before = [], [], []  # `before`: the scheduler's steps before each update

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        if forwards and len(forwards) % len(sizes) == 0:
            recorder.start_epoch()
        forwards.append(batch)
        return model(batch).mean() * loud

    def make_scheduler(optimizer: Optimizer, updates: int) -> LRScheduler:
        lengths.append(number(updates))
        return LambdaLR(optimizer, lambda step: 0.5**step)

    def count_scheduler_steps(*_) -> None:
        lr = optimizer.param_groups[0]["lr"]
        before.append(round(0 - log2(lr), 6) if lr > 0 else inf)  # 0 - 0.0 is 0, and -0.0 would print as -0

    optimizer.register_step_post_hook(count_scheduler_steps)
    given, batches = (list(torch.arange(sum(sizes)).split(list(sizes))) for _ in range(2))
    answer(tally, batches, loss_fn, optimizer, n, epochs, make_scheduler)

    case = f"micro-batches of {list(sizes)} samples, N = {n}, {_epochs(epochs)}"
    case += ", and a gradient left by an earlier backward pass" if dirty else ""
    expected, observed = Expected(sizes, n, epochs), recorder.observed()
    observed.rows = [row / loud for row in observed.rows]
    how = changed(batches, given, "the list of micro-batches")
    if how and observed.steps:
        raise Mistake("changed-input", f"{case}: {how}; the caller, and the next epoch, need it as it was.")
    ran, rest = divmod(len(forwards), len(sizes))
    if ran and not rest and ran != epochs and observed.steps == ran * len(expected.windows):
        raise Mistake("wrong-length", f"{case}: {observed.steps} updates have run, as many as in {_epochs(ran)}.")
    expected.compare(observed, case, OLD / loud if dirty else None)
    _compare_length(lengths, expected, case)
    _compare_cadence(before, expected, case)


def _judge_loud(judge: Callable) -> None:
    """Judges a case that was right with tiny gradients once more, with large ones: a limit on the norm shows."""
    try:
        judge(loud=LOUD)
    except Mistake as mistake:
        found = "With tiny gradients all updates are right, so something limits large ones"
        raise Mistake("clip-limit", f"{mistake.verdict.message} {found}.") from None


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def _compare_length(lengths: list[float], expected: Expected, case: str) -> None:
    if not lengths:
        raise Mistake("scheduler-cadence", f"{case}: no schedule was made, so the learning rate never changes.")
    if len(lengths) > 1:
        found = f"the schedule was made {len(lengths)} times, and starts over each time"
        raise Mistake("scheduler-cadence", f"{case}: {found}.")
    micro_batches, per_epoch, epochs = len(expected.sizes), len(expected.windows), expected.epochs
    if lengths[0] == per_epoch * epochs:
        return
    hints = {  # where two fit, the second is meant
        ceil(micro_batches * epochs / expected.n): "a window never spans two epochs",
        micro_batches // expected.n * epochs: "the short window of each epoch makes an update too",
        per_epoch: "that is one epoch",
        micro_batches: "these are the micro-batches of one epoch",
        micro_batches * epochs: "that counts micro-batches",
    }
    hint = hints.get(lengths[0], "count the windows of an epoch, the short one too, and multiply by the epochs")
    found = f"a schedule for {lengths[0]:g} updates, {per_epoch * epochs} will run"
    raise Mistake("wrong-length", f"{case}: {found}; {hint}.")


def _compare_cadence(before: list[float], expected: Expected, case: str) -> None:
    per_epoch, want = len(expected.windows), list(range(len(expected.rows)))
    if before == want:
        return
    if set(before) == {0}:
        hint = "it never steps"
    elif before[0] == 1 and {after - earlier for earlier, after in pairwise(before)} <= {1}:
        hint = "the first update should use the first learning rate: step the scheduler after the optimizer"
    elif before == [k // per_epoch for k in want]:
        hint = "it steps once per epoch"
    elif max(before) > want[-1]:
        hint = "it steps more often than the optimizer"
    else:
        hint = "one scheduler step should follow each update"
    found = f"scheduler steps before each update [{', '.join(f'{count:g}' for count in before)}], expected {want}"
    raise Mistake("scheduler-cadence", f"{case}: {found}: {hint}.")


def _judge_scheduled_model(answer: Callable, n: int) -> None:
    """Compares every parameter of a real model, under a schedule that falls to 0."""
    batches = random_batches(RAGGED)

    def make_scheduler(optimizer: Optimizer, updates: int) -> LRScheduler:
        return LinearLR(optimizer, 1.0, 0.0, total_iters=int(number(updates)))

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        answer(model, list(batches), squared_error, optimizer, n, 2, make_scheduler)

    groups = [*windows(batches, n)] * 2
    correct = large_batches(groups, make_scheduler=partial(make_scheduler, updates=len(groups)))
    judge_model(train, correct, mlp(3, 4, 2).double(), sgd, f"on a real model, N = {n}, 2 epochs")


# Second exercise: the two updates of a GAN, with accumulation.

NAMES = {"D": "discriminator", "G": "generator"}
GAN_CASES = [(EQUAL[:6], 2), (EQUAL[:6], 4), *((RAGGED, n) for n in (2, 4, 1, 100))]


@exercise(
    "gan_updates",
    hints={
        "foreign-gradients": "The message names the network and the update. Which backward pass ran between this "
        "network's last zeroing and its own first backward pass?",
        "stale-gradients": "A gradient of an earlier update, or of the time before the call, is still in .grad. When "
        "is the last moment to zero this network?",
        "orphan-parameters": "Which network is frozen, or which loss is without a graph, when its backward pass runs? "
        "Do both networks learn again at the end?",
        "discarded-gradients": "How often do you zero each network in a window? What does its .grad hold just before?",
        "wrong-order": "The generator should meet the discriminator that has just been updated. Which of the four "
        "comes too early: a forward pass, a backward pass, a step, a window?",
        "irregular-window": "Count the steps of each optimizer in one window. Both make exactly one.",
        "clip-limit": "The task asks for no clipping. Which of your lines limits a gradient?",
        "held-graphs": "Both losses build a graph for every micro-batch. Which line of yours keeps it after its "
        "backward pass, or puts that pass off?",
        "wrong-value": "Take N = 1 first: the discriminator's update, then the generator's with the new discriminator.",
    },
)
def _gan_updates(answer: Callable) -> str:
    for sizes, n in GAN_CASES:
        _judge_gan(answer, sizes, n)
    _judge_gan(answer, EQUAL, 2, dirty=True)
    _judge_loud(partial(_judge_gan, answer, RAGGED, 2))
    for n in (1, 2, 4):
        _judge_gan_model(answer, n)
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, networks that were used before: "
        "each update holds its own loss's gradient and nothing else."
    )


def _judge_gan(answer: Callable, sizes: Sequence[int], n: int, dirty: bool = False, loud: float = QUIET) -> None:
    """Judges two epochs on two tallies, whose losses are multiplied by `loud`.

    In each, weight `i` belongs to sample `i` of its own loss, and weight `samples + i` to sample `i` of the other
    network's loss: a gradient that arrives there is foreign.
    """
    case, samples = f"micro-batches of {list(sizes)} samples, N = {n}", sum(sizes)
    case += ", and networks that were used before" if dirty else ""
    nets = {name: Tally(2 * samples).double() for name in "GD"}
    optimizers = {name: SGD(net.parameters(), lr=0.5) for name, net in nets.items()}
    recorders = {name: Recorder(net.weight, optimizers[name], dirty) for name, net in nets.items()}

    backwards = dict.fromkeys(NAMES, 0)  # through each network's own loss

    def count(name: str) -> None:
        backwards[name] += 1

    def loss_of(name: str, other: str) -> Callable[[Tensor], Tensor]:
        def loss_fn(batch: Tensor) -> Tensor:
            loss = (nets[name](batch) + nets[other](batch + samples)).mean() * loud
            if loss.requires_grad:
                loss.register_hook(lambda _: count(name))
            return loss

        return loss_fn

    def check_frozen(name: str, weight: nn.Parameter) -> None:
        if not weight.requires_grad and (weight.grad is None or not weight.grad[:samples].any()):
            hint = "it is frozen when its optimizer steps: let it learn again after the other's backward pass"
            raise Mistake("orphan-parameters", f"{case}: the {NAMES[name]}: {hint}.")

    for name, net in nets.items():
        optimizers[name].register_step_post_hook(lambda *_, name=name, net=net: check_frozen(name, net.weight))
    how = ""
    for _ in range(2):
        for recorder in recorders.values():
            recorder.start_epoch()
        given, batches = (list(torch.arange(samples).split(list(sizes))) for _ in range(2))
        losses = loss_of("G", "D"), loss_of("D", "G")
        try:
            answer(*nets.values(), batches, *losses, *optimizers.values(), n)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise Mistake(
                "orphan-parameters", f"{case}: a loss needs no gradient. Are both networks frozen, or is no_grad on?"
            ) from None
        how = how or changed(batches, given, "the list of micro-batches")

    observed = {name: recorders[name].observed() for name in NAMES}
    if not any(each.steps for each in observed.values()) and not any(each.backwards for each in observed.values()):
        raise Mistake("not-attempted", f"{case}: no backward pass and no step has run yet.")
    for name, each in observed.items():
        seen = backwards[name] or each.backwards
        each = replace(each, rows=[row / loud for row in each.rows], backwards=seen)
        _compare_player(each, name, Expected(sizes, n), case, OLD / loud if dirty else None)
    for name in "DG":
        for k, row in enumerate(observed[name].rows, start=1):
            if row[samples:].any():
                raise Mistake("foreign-gradients", f"{case}: {_holds(name, k)}, beside its own.")
    for name, net in nets.items():
        if not net.weight.requires_grad:
            raise Mistake("orphan-parameters", f"{case}: the {NAMES[name]} is left frozen at the end.")
    if how:
        raise Mistake("changed-input", f"{case}: the updates are right, but {how}.")


def _compare_player(observed: Observed, name: str, expected: Expected, case: str, old: float | None) -> None:
    """Compares what one network's updates hold of its own loss. The rows hold samples of both losses."""
    samples = sum(expected.sizes)
    for k, row in enumerate(observed.rows, start=1):
        if row[samples:].any() and not row[:samples].any():
            raise Mistake("foreign-gradients", f"{case}: {_holds(name, k)}, and none of its own.")
    own = replace(observed, rows=[row[:samples] for row in observed.rows])
    expected.compare(own, f"{case}: the {NAMES[name]}", old)


def _holds(name: str, k: int) -> str:
    other = {"D": "generator", "G": "discriminator"}[name]
    return f"update {k} of the {NAMES[name]} holds gradients of the {other}'s loss"


def _judge_gan_model(answer: Callable, n: int) -> None:
    """Compares every parameter of two real networks, the order of the updates, and memory."""
    batches = random_batches((4, 4, 4, 2, 3))  # three real numbers, two of noise
    ours = nn.ModuleList([mlp(2, 4, 3), mlp(3, 4, 1)]).double()
    theirs, case, order = copy.deepcopy(ours), f"on real networks, N = {n}", []
    _large_batch_gan(*_players(ours), batches, n)
    with saved_bytes(theirs) as saved:
        held = {name: SavedBytes() for name in NAMES}

        def notice(event: str) -> None:
            order.append(event)
            if event.islower():  # a forward pass
                held[event.upper()].peak = max(held[event.upper()].peak, saved.now)

        nets, losses, optimizers = _players(theirs, notice)
        try:
            answer(*nets, list(batches), *losses, *optimizers, n)
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            hint = "a backward pass goes through weights that a step has changed since the forward pass"
            raise Mistake("wrong-order", f"{case}: {hint}.") from None
    try:
        compare_weights(ours, theirs, case)
    except Mistake:
        if "".join(event for event, _ in groupby(order)) != "dDgG" * ceil(len(batches) / n):
            hint = "in each window the discriminator's loss and its step come first, the generator's after them"
            raise Mistake("wrong-order", f"{case}: the updates are not in turn: {hint}.") from None
        raise
    for name, loss in zip("GD", losses, strict=True):
        with saved_bytes(theirs) as alone:
            loss(batches[0])
        compare_memory(held[name], alone, f"{case}, the {NAMES[name]}'s loss")


def _players(
    nets: nn.ModuleList, notice: Callable[[str], None] = lambda event: None
) -> tuple[nn.ModuleList, tuple, tuple]:
    """The networks, their losses and their optimizers, the generator's first.

    `notice` hears of each forward pass of a loss, as g or d, and of each step, as G or D.
    """
    generator, discriminator = nets
    soft = nn.functional.softplus

    def g_loss(batch: Tensor) -> Tensor:
        loss = soft(-discriminator(generator(batch[:, 3:]))).mean()
        notice("g")
        return loss

    def d_loss(batch: Tensor) -> Tensor:
        loss = (soft(discriminator(generator(batch[:, 3:]))) + soft(-discriminator(batch[:, :3]))).mean()
        notice("d")
        return loss

    optimizers = SGD(generator.parameters(), lr=0.1, momentum=0.9), Adam(discriminator.parameters(), lr=0.01)
    for name, optimizer in zip("GD", optimizers, strict=True):
        optimizer.register_step_post_hook(lambda *_, name=name: notice(name))
    return nets, (g_loss, d_loss), optimizers


def _large_batch_gan(nets: nn.ModuleList, losses: tuple, optimizers: tuple, batches: list[Tensor], n: int) -> None:
    """One large batch per window, and every gradient taken for its own parameters alone."""
    for window in windows(batches, n):
        for net, loss, optimizer in reversed([*zip(nets, losses, optimizers, strict=True)]):
            parameters = list(net.parameters())
            gradients = torch.autograd.grad(loss(torch.cat(window)), parameters)
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            optimizer.step()
