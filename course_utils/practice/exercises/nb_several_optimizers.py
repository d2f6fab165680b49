"""The exercise of notebook *several optimizers*: a GAN whose two updates use their own gradients."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import ceil

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from course_utils.loops import windows
from course_utils.memory import SavedBytes, saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, compare_memory, compare_weights
from course_utils.practice.updates import OLD, QUIET, Expected, Observed, Recorder, judge_loud, random_batches

EQUAL, RAGGED = (2,) * 8, (4, 2, 1, 3, 2)
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
    judge_loud(partial(_judge_gan, answer, RAGGED, 2))
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
