"""What the auditor says of the table's programs: no error in a correct one, questions listed.

Correct programs are in `tests/correct_programs.py`; those below are for the rules' guards.
"""

import functools
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

from correct_programs import PROGRAMS, row, said
from gradaudit import audit
from runs import data, in_windows, mean, net, scaled_steps, update, with_sgd

INFINITY = float("inf")


def squares(out, reduction="mean"):
    return F.mse_loss(out, torch.zeros_like(out), reduction=reduction)


@said()
def shares_that_are_given_to_backward(model, optimizer):
    for k, (x, y) in enumerate(data(16), start=1):
        loss = mean(model(x), y)
        if k % 2:
            loss.backward(torch.tensor(0.25))
        else:
            torch.autograd.backward(loss, grad_tensors=torch.tensor(0.25))
        if k % 4 == 0:
            update(optimizer)


# Windows, and the loss of each micro-batch in them

for name, loss, sizes, *findings in [
    ("a tail that counts what its author gave it", lambda out, y, n: mean(out, y) * {4: 0.25, 2: 0.4}[n], [4, 4, 4, 2]),
    ("losses that nobody knows", lambda out, *_: out.abs().max() / 4, [1, 4, 4, 4, 4], "irregular-window error"),
    ("a sum that is divided by the window first", lambda out, *_: 0.3 * squares(out, "sum") / 2 / len(out), [2] * 3),
]:
    row(name, lambda loss=loss, sizes=sizes: in_windows(loss, sizes), *findings)
smoothed = functools.partial(F.cross_entropy, label_smoothing=0.1)
row("smoothed labels, never divided", lambda: in_windows(lambda out, y, n: smoothed(out, y)), "loss-scale error")
row("a declared window's short tail", lambda: in_windows(mean, [4, 4, 4, 2]), window=4)
row("a declared window's short start", lambda: in_windows(mean, [2, 4, 4, 4]), "irregular-window error", window=4)


@said("loss-scale undecided")
def three_tasks_or_three_micro_batches():
    trunk, heads = nn.Linear(3, 3), [net() for _ in range(3)]
    optimizer = Adam([p for part in (trunk, *heads) for p in part.parameters()], lr=0.01)
    for _ in range(4):
        for (x, y), head in zip(data(3), heads, strict=True):
            mean(head(trunk(x)), y).backward()
        update(optimizer)


@said("held-graphs advice", "loss-scale undecided")
def a_state_that_is_carried_on_with_its_graph():
    cell = nn.RNNCell(3, 4)
    optimizer = SGD(cell.parameters(), lr=0.1)
    for _ in range(3):
        state = torch.zeros(4, 4)
        for x, _ in data(3):
            state = cell(x, state)
            F.mse_loss(state, torch.ones(4, 4)).backward(retain_graph=True)
        update(optimizer)


# Gradients that are used again, or never, and steps without any


@said("stale-gradients error")
def a_part_that_is_never_zeroed_and_the_other_in_place(model, optimizer):
    for i, (x, y) in enumerate(data(12)):
        mean(model(x), y, 2).backward()
        if i % 2:
            optimizer.step()
            model[2].zero_grad(set_to_none=False)


@said()
def a_step_that_the_scaler_skips_after_the_script_has_zeroed():
    def zero(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        if not model.weight.grad.isfinite().all():
            optimizer.zero_grad()

    scaled_steps([1.0, 1.0, 1.0, INFINITY, 1.0, 1.0], before_the_step=zero)


# Gradients of another loss, and parameters that an optimizer holds or doesn't


def holding(owned, trained):
    parts = {name: net() for name in ("body", "head", "copy")}
    parts |= {"wide": nn.Linear(3, 5), "frozen": net().requires_grad_(False)}
    optimizer = SGD([p for name in owned.split() for p in parts[name].parameters()], lr=0.1)
    for x, y in data(4):
        sum(mean(parts[name](x), y) for name in trained.split()).backward()
        optimizer.step()
        for part in parts.values():
            part.zero_grad()


for owned, trained, *findings in [
    ("body head", "body wide", "orphan-parameters advice", "orphan-parameters advice"),  # of other shapes
    ("body head", "body copy", "orphan-parameters error"),  # of the shapes of the head
    ("body head", "body", "orphan-parameters advice"),
    ("head", "wide", "orphan-parameters error"),
    ("head", "copy", "orphan-parameters error", "empty-step error"),
    ("frozen", "body", "orphan-parameters error"),
]:
    row(f"{owned}: held; {trained}: trained", lambda o=owned, t=trained: holding(o, t), *findings)


@said("foreign-gradients error")
def a_critic_that_is_not_frozen_while_an_autoencoder_learns_from_it():
    encoder, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    of_encoder, of_critic = Adam(encoder.parameters()), Adam(critic.parameters())
    for x, _ in data(6):
        out = encoder(x)
        (F.l1_loss(out, x) - 0.1 * critic(out).mean()).backward()
        update(of_encoder)
        (F.relu(1 - critic(x)).mean() + F.relu(1 + critic(out.detach())).mean()).backward()
        update(of_critic)


# Updates that no torch optimizer makes


@torch.no_grad()
def in_place(p, change):
    p -= change


def data_add_(p, change):
    p.data.add_(change, alpha=-1)


def new_data(p, change):
    p.data = p.data - change


def by_hand(write=in_place, divide=4, zero=True, count=12, bias=True):
    model = nn.Linear(3, 2, bias)
    for i, (x, y) in enumerate(data(count)):
        mean(model(x), y, divide).backward()
        if (i + 1) % 4 == 0:
            for p in model.parameters():
                write(p, 0.1 * p.grad)
            if zero:
                model.zero_grad()


for write in (in_place, data_add_, new_data):
    how = f"updates by hand with {write.__name__}"
    row(how, lambda write=write: by_hand(write, zero=False), "stale-gradients error")
row("updates by hand", by_hand)
row("updates by hand of one tensor", lambda: by_hand(zero=False, bias=False), "stale-gradients error")
row("leftovers of updates by hand", lambda: by_hand(count=14), "leftover-gradients error")
row("undivided losses and updates by hand, which may divide", lambda: by_hand(divide=1), "loss-scale undecided")


def masters(zero):
    model = net().to(torch.bfloat16)
    weights = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = SGD(weights, lr=0.1)
    for x, y in data(6):
        (mean(model(x.bfloat16()), y) * 8).backward()
        for master, p in zip(weights, model.parameters(), strict=True):
            master.grad = p.grad.float() / 8
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(weights, model.parameters(), strict=True):
                p.copy_(master)
        if zero:
            model.zero_grad()


row("master weights in another type", lambda: masters(True))
row("master weights in another type that are never zeroed", lambda: masters(False), "stale-gradients error")


# Clipping, scalers, schedules


row("a first window that overflows", lambda: scaled_steps([INFINITY] * 2 + [0.5] * 8, n=2))
row("a fused sgd all of whose windows overflow", lambda: scaled_steps([INFINITY] * 3, momentum=0.9, fused=True))


def scheduled(schedule_of, count=16, at=lambda k: True):
    """Updates from 4 micro-batches each; the schedule steps after those whose number `at` says."""
    model, optimizer = with_sgd()
    schedule = schedule_of(optimizer)
    for k, (x, y) in enumerate(data(count), start=1):
        mean(model(x), y, 4).backward()
        if k % 4 == 0:
            update(optimizer)
        if at(k):
            schedule.step()


def decaying(optimizer):
    return ExponentialLR(optimizer, 0.9)


def plateau(optimizer):
    return SimpleNamespace(step=functools.partial(ReduceLROnPlateau(optimizer, patience=0).step, 1.0))


def falling(total):
    return lambda step: max(0.0, (total - step) / total)


row("a plateau, per epoch", lambda: scheduled(plateau, at=lambda k: k % 8 == 0))
row("one scheduler step inside a window", lambda: scheduled(decaying, at=lambda k: k in (8, 10, 12, 16)))
row(
    "a scheduler step inside two windows",
    lambda: scheduled(decaying, at=lambda k: k in (6, 10, 16)),
    "scheduler-cadence error",
)
row(
    "a schedule whose class has a step of its own, per micro-batch",
    lambda: scheduled(lambda o: CosineAnnealingWarmRestarts(o, 4)),
    "scheduler-cadence error",
)
for name, schedule_of in {
    "of one's own": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "whose length is in micro-batches": lambda o: CosineAnnealingLR(o, 16),
    "after a warm-up": lambda o: SequentialLR(o, [LinearLR(o), CosineAnnealingLR(o, 11)], milestones=[5]),
    "of one's own whose length is in micro-batches": lambda o: LambdaLR(o, falling(16)),
}.items():
    row(f"a schedule {name}", lambda make=schedule_of: scheduled(make), "scheduler-cadence undecided")


# Graphs that are held, and losses that no backward call reaches


def with_the_last_ones_kept(count, kept):
    model, optimizer = with_sgd()
    last = deque(maxlen=kept)
    for x, y in data(count):
        loss = mean(model(x), y)
        last.append(loss)
        loss.backward()
        update(optimizer)


row("a few losses kept", lambda: with_the_last_ones_kept(8, kept=4))
row("a few of many losses kept", lambda: with_the_last_ones_kept(40, kept=6))
row("losses that are kept", lambda: with_the_last_ones_kept(12, kept=12), "held-graphs advice")


@said("held-graphs error")
def a_loss_that_counts_twice(model, optimizer):
    for x, y in data(4):
        loss = mean(model(x), y)
        loss.backward(retain_graph=True)
        (loss + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()
        update(optimizer)


# Layers that normalize micro-batches, and short numbers


def with_batchnorm():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


row("batchnorm", lambda: in_windows(mean, model=with_batchnorm()), "batchnorm advice")
row("frozen batchnorm", lambda: in_windows(mean, model=with_batchnorm().eval()))
row("bfloat16", lambda: in_windows(mean, model=net().bfloat16()), "low-precision-accumulation advice")
row("bfloat16 without accumulation", lambda: in_windows(mean, [1] * 4, net().bfloat16()))


# Losses, not only calls


@said("held-graphs error")
def one_loss_twice(model, optimizer):
    for x, y in data(12):
        loss = mean(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        update(optimizer)


@said()
def a_loss_function_that_validation_uses_with_a_graph(model, optimizer):
    def loss_of(x, y):
        return mean(model(x), y)

    for x, y in data(12):
        loss_of(x, y).backward()
        update(optimizer)
    for x, y in data(4):
        loss_of(x, y).item()


@said("held-graphs undecided")
def two_losses_that_share_a_term(model, optimizer):
    for x, y in data(12):
        out = model(x)
        shared = mean(out, y)
        (shared - squares(out)).backward(retain_graph=True)
        (shared + squares(out.detach() - out)).backward()
        update(optimizer)


@said("unused-loss error")
def backward_with_the_step_inside_the_test(model, optimizer):
    for k, (x, y) in enumerate(data(16), start=1):
        loss = mean(model(x), y, 4)
        if k % 4 == 0:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@said("unused-loss undecided")
def losses_of_which_some_are_left_out(model, optimizer):
    for k, (x, y) in enumerate(data(16)):
        loss = mean(model(x), y)
        if k not in (6, 7):
            loss.backward()
            update(optimizer)


def summed(n, divide, total=sum):
    model, optimizer = with_sgd()
    losses = []
    for k, (x, y) in enumerate(data(12), start=1):
        losses.append(mean(model(x), y, divide))
        if k % n == 0:
            total(losses).backward()
            update(optimizer)
            losses = []


row("a window summed in the graph", lambda: summed(4, 4), "held-graphs advice", window=4)
stacked = functools.partial(summed, 4, 1, lambda losses: torch.stack(losses).mean())
row("the mean of a stack of losses", stacked, "held-graphs advice")
row("a window summed in the graph, not as declared", lambda: summed(3, 3), "held-graphs advice",
    "irregular-window error", window=4)  # fmt: skip
row("a window summed in the graph, undivided", lambda: summed(4, 1), "held-graphs advice", "loss-scale undecided")


def two_branches(last):
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data(16), start=1):
        if k % 4:
            mean(model(x), y, 4).backward()
        else:
            mean(model(x), y, last).backward()
            update(optimizer)


row("two branches, divided alike", lambda: two_branches(4))
row("two branches, of which one divides", lambda: two_branches(1), "loss-scale error")
halves = functools.partial(in_windows, lambda out, y, n: 0.5 * mean(out, y) + 0.5 * squares(out), [4] * 3)
row("two losses with factors of their own, undivided", halves, "loss-scale undecided")


def divided_in_place(times, every=4, change=Tensor.div_):
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data(16), start=1):
        mean(model(x), y).backward()
        if k % every == 0:
            for p in model.parameters():
                for _ in range(times):
                    change(p.grad, 4)
        if k % 4 == 0:
            update(optimizer)


def divide_data(grad, n):
    grad.data.div_(n)


for change in (Tensor.div_, divide_data):
    how = f"gradients divided by {change.__name__}"
    row(f"{how}, once", lambda c=change: divided_in_place(1, change=c))
    row(f"{how}, never", lambda c=change: divided_in_place(0, change=c), "loss-scale error")
    row(f"{how}, twice", lambda c=change: divided_in_place(2, change=c), "loss-scale error")
row("gradients divided inside the window", lambda: divided_in_place(1, every=2), "loss-scale undecided")


@said("loss-scale undecided")
def divided_by_the_window_which_holds_one(model, optimizer, accumulation_steps=4):
    for x, y in data():
        optimizer.zero_grad()
        loss = mean(model(x), y)
        if accumulation_steps > 1:
            loss = loss / accumulation_steps
        loss.backward()
        optimizer.step()


row("halved, one by one", lambda: in_windows(lambda out, y, n: mean(out, y, 2), [1] * 4))


@said("empty-step error", "orphan-parameters undecided", "unused-loss advice")
def losses_none_of_which_goes_back(model, optimizer):
    for x, y in data():
        mean(model(x), y).item()
        update(optimizer)


@said("loss-scale undecided")
def a_step_inside_the_backward_call():
    model = net()
    for p in model.parameters():
        optimizer = SGD([p], lr=0.1)
        p.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: update(optimizer))
    for x, y in data():
        mean(model(x), y, 4).backward()


# What comes too late, too seldom, or not at all


@said("discarded-gradients error")
def zeroed_at_a_loss_of_nan_in_the_middle_of_a_window(model, optimizer):
    for k, (x, y) in enumerate(data(16), start=1):
        (mean(model(x), y, 4) * (float("nan") if k == 7 else 1)).backward()
        if k == 7:
            optimizer.zero_grad()
        if k % 4 == 0:
            update(optimizer)


def cut_short(batches, most):
    model, optimizer = with_sgd()
    loader = DataLoader(TensorDataset(torch.randn(4 * batches, 3), torch.randint(2, (4 * batches,))), batch_size=4)
    for k, (x, y) in enumerate(loader, start=1):
        if k > most:
            break
        mean(model(x), y, 4).backward()
        if k % 4 == 0:
            update(optimizer)


row("a run that is cut short", lambda: cut_short(20, 10), "leftover-gradients undecided")
row("a run that ends with its data", lambda: cut_short(10, 10), "leftover-gradients error")


for name, total, every, *findings in [
    ("as long as the run in updates, per epoch", 16, 16, "scheduler-cadence error"),
    ("as long as the run in epochs, per epoch", 4, 16),
    ("that reaches 0 before the end", 14, 4, "scheduler-cadence error"),
    ("that reaches 0 with the last update", 15, 4),
]:
    made = functools.partial(scheduled, lambda o, n=total: LambdaLR(o, falling(n)), 64, lambda k, n=every: k % n == 0)
    row(f"a schedule {name}", made, *findings)


# Parts that are used for a while


def used_until(last, to_none=False, **options):
    parts = nn.ModuleList([net(), net()])
    optimizer = AdamW(parts.parameters(), lr=0.1, **options)
    for k, (x, y) in enumerate(data(16)):
        mean(parts[k < last](x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)


row("a part that zeros go on moving", lambda: used_until(4), "orphan-parameters advice")
row("a part that is used until the last quarter", lambda: used_until(12))
row("a part whose .grad is None", lambda: used_until(4, to_none=True))


def replaced(keep):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    kept = [model[1]] if keep else []
    model[1] = nn.Linear(4, 5)
    for x, y in data(12):
        mean(model(x), y).backward()
        optimizer.step()
        model.zero_grad()
    return kept


row("a head replaced after the optimizer was built", lambda: replaced(False), "orphan-parameters error")
row("a head that may be used again", lambda: replaced(True), "orphan-parameters advice", "orphan-parameters advice")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("program", "findings", "window"), PROGRAMS)
def test_a_program_is_judged_as_the_table_says(program, findings, window):
    with audit(window=window) as report:
        program()
    assert sorted(f"{finding.rule} {finding.level}" for finding in report.findings) == findings
    assert report.history.calls or report.history.updates_made
    assert not report.history.failed_rules
    assert not any(finding.fix for finding in report.findings if finding.level == "undecided")
