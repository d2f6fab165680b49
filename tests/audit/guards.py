"""Programs for the guards of the rules: each would raise a false alarm, or hide a bug, without its guard."""

from collections import deque
from itertools import cycle

import torch
from runs import data, in_windows, mean, net, scaled_steps, update, with_sgd
from table import row, said
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader

INFINITY = float("inf")


# Programs that differ in their windows, and in the loss of each micro-batch, alone


def squares(out):
    return F.mse_loss(out, torch.zeros_like(out))


def sum_of_squares(out):
    return F.mse_loss(out, torch.zeros_like(out), reduction="sum")


def with_batchnorm():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def with_a_trained_weight(loss):
    """Windows of two undivided losses, of each of which `loss(cross entropy, weight)` is taken."""
    model = net()
    model.of_the_loss = nn.Parameter(torch.tensor(1.0))
    in_windows(lambda out, y, n: loss(mean(out, y), model.of_the_loss), model=model)


def with_weights(weights, sizes):
    weights = cycle(weights)
    in_windows(lambda out, y, n: mean(out, y) * next(weights), sizes)


QUESTION, ERROR = ["undecided"], ["error"]
IN_WINDOWS = {
    "bfloat16 without accumulation": (
        "low-precision-accumulation", [], lambda: in_windows(mean, [1] * 4, net().bfloat16()),
    ),
    "batchnorm without accumulation": ("batchnorm", [], lambda: in_windows(mean, [1] * 4, with_batchnorm())),
    "a tail that counts what its author gave it": (
        "loss-scale", [], lambda: in_windows(lambda out, y, n: mean(out, y) * {4: 0.25, 2: 0.4}[n], [4, 4, 4, 2]),
    ),
    "a short first window of a resumed run": (
        "loss-scale", [], lambda: in_windows(lambda out, y, n: mean(out, y) / 4, [2, 4, 4, 4]),
    ),
    "two losses that count half each": (
        "irregular-window", [], lambda: in_windows(lambda out, y, n: 0.5 * mean(out, y) + 0.5 * squares(out), [1] * 8),
    ),
    "sums over episodes": (
        "irregular-window", QUESTION, lambda: in_windows(lambda out, y, n: mean(out, y), [5, 5, 9, 5, 5, 8, 5, 5]),
    ),
    "sums over all numbers of an episode": (
        "irregular-window", QUESTION, lambda: in_windows(lambda out, *_: out.exp().sum(), [2, 2, 3, 2, 2, 5, 2]),
    ),
    "a first window of one less whose losses nobody knows": (
        "irregular-window", ERROR, lambda: in_windows(lambda out, *_: out.abs().max() / 4, [3, 4, 4, 4]),
    ),
    "a first window of one whose losses nobody knows": (
        "irregular-window", ERROR, lambda: in_windows(lambda out, *_: out.abs().max() / 4, [1, 4, 4, 4, 4]),
    ),
    "a long window that was planned with a penalty that was not": (
        "irregular-window",
        [],
        lambda: in_windows(lambda out, y, n: 0.01 * squares(out) + mean(out, y) / n, [4, 4, 8, 4, 4, 4]),
    ),
    "weights that add up to the window and are divided by it": (
        "loss-scale",
        [],
        lambda: in_windows(lambda out, y, n: (1.4 * mean(out, y) + 2.6 * squares(out)) / 4, [4] * 3),
    ),
    "weights around 1 in windows and a tail": (
        "loss-scale", [], lambda: with_weights([1.2, 1.1, 0.9, 0.8, 1.2, 1.1, 0.9, 0.8, 1.2, 0.8], [4, 4, 2]),
    ),
    "a penalty that is a sum beside a mean": (
        "loss-scale",
        [],
        lambda: in_windows(lambda out, y, n: mean(out, y) / 4 + 0.003 * out.square().sum(), [4] * 3),
    ),
    "a sum that is divided by the window first": (
        "loss-scale", [], lambda: in_windows(lambda out, *_: 0.3 * sum_of_squares(out) / 2 / len(out)),
    ),
    "a loss beside the largest of masked numbers": (
        "loss-scale",
        [],
        lambda: in_windows(lambda out, y, n: (mean(out, y) + (out * torch.rand(4, 2)).abs().max()) / 2),
    ),
    "a loss times a weight that is trained": (
        "loss-scale", ERROR, lambda: with_a_trained_weight(lambda loss, weight: loss * weight),
    ),
}  # fmt: skip
DECLARED = {  # a window was declared
    "windows of a declared size and shorter ones": (
        "leftover-gradients", [], 7, lambda: in_windows(lambda out, y, n: mean(out, y) / 4, [4, 4, 7, 4, 4, 7]),
    ),
    "a short tail of a declared size": ("irregular-window", [], 4, lambda: in_windows(mean, [4, 4, 4, 2])),
    "a short first window of a declared size": ("irregular-window", ERROR, 4, lambda: in_windows(mean, [2, 4, 4, 4])),
}  # fmt: skip
for name, (rule, levels, run) in IN_WINDOWS.items():
    row(name, run, rule, *levels)
for name, (rule, levels, n, run) in DECLARED.items():
    row(name, run, rule, *levels, window=n)


# Others
@said("held-graphs", "undecided")
def one_loss_of_a_whole_run_that_counts_twice():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data(5)):
        loss = mean(model(x), y) / 2
        loss.backward(retain_graph=True)
        if k == 0:
            loss.backward()
        update(optimizer)


def with_the_last_ones_kept(count, kept, losses=True):
    body, head, last = net(), net(), deque(maxlen=kept)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in data(count):
        features = body(x)
        loss = mean(head(features.repeat(1, 2)[:, :3]), y)
        last.append(loss if losses else features)
        loss.backward()
        update(optimizer)


@said("held-graphs")
def two_losses_of_unrelated_forward_passes():
    model, optimizer = with_sgd()
    for (x, y), (u, v) in zip(data(), data(), strict=True):
        (mean(model(x), y) + mean(model(u), v)).backward()
        update(optimizer)


def scaled(windows, **options):
    """Windows of micro-batches, each as its inputs and what its loss is multiplied by."""
    model, optimizer = with_sgd(**options)
    scaler = GradScaler("cpu", init_scale=4.0)
    for window in windows:
        for x, factor in window:
            scaler.scale(mean(model(x), torch.zeros(len(x), dtype=torch.long)) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


BROKEN = torch.full((4, 3), INFINITY)


@said("irregular-window")
def first_updates_of_a_small_loss_that_overflow():
    scaled([[(BROKEN, 0.25)]] * 3 + [[(torch.ones(4, 3), 0.25)]])


@said("irregular-window")
def a_long_window_of_small_micro_batches_that_was_planned():
    model, optimizer = with_sgd()
    usual, small = (3, 7, 4, 6), (1, 1, 2, 1, 1, 1, 1, 1)
    for sizes in (usual, usual, small, usual, usual):
        for size in sizes:
            ((x, y),) = data(1, size)
            (F.cross_entropy(model(x), y, reduction="sum") / sum(sizes)).backward()
        update(optimizer)


@said("loss-scale", "undecided")
def two_tasks_with_a_head_each_in_turn():
    body, heads = net(), (nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = SGD([p for part in (body, *heads) for p in part.parameters()], lr=0.1)
    for _ in range(4):
        for head in heads:
            for x, y in data(1):
                mean(head(body(x)), y).backward()
        update(optimizer)


def assigned(add_to=lambda model: None):
    """Gradients that are assigned and clipped, before something is added to them."""
    model, optimizer = with_sgd()
    parameters = list(model.parameters())
    for x, y in data():
        for p, gradient in zip(parameters, torch.autograd.grad(mean(model(x), y), parameters), strict=True):
            p.grad = gradient
        nn.utils.clip_grad_norm_(parameters, 0.1)
        add_to(model)
        update(optimizer)


@said("scaler-timing", "error")
def two_scalers_in_one_loop():
    model, optimizer = with_sgd()
    for _ in range(2):
        scaler = GradScaler("cpu", init_scale=4.0)
        for x, y in data(3):
            scaler.scale(mean(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def stepped(windows, at):
    """Updates from two micro-batches each; the schedule steps at some moments: (window, "inside" or "after")."""
    model, optimizer = with_sgd()
    schedule = ExponentialLR(optimizer, 0.9)
    for k in range(windows):
        for moment in ("inside", "after"):
            ((x, y),) = data(1)
            mean(model(x), y, 2).backward()
            if moment == "after":
                update(optimizer)
            if (k, moment) in at:
                schedule.step()


def an_epoch_that_ends_with_an_overflow(updates, epochs):
    """The schedule steps once in each epoch; the last update of the last one is skipped."""
    schedule, steps = [], iter(range(1, epochs * updates + 1))

    def at_an_epochs_end(model, optimizer, scaler):
        schedule.append(schedule[0] if schedule else ExponentialLR(optimizer, 0.9))
        if next(steps) % updates == 0:
            schedule[0].step()

    scaled_steps([1.0] * (epochs * updates - 1) + [INFINITY], after_the_step=at_an_epochs_end)


def steps_with(optimizer, model, before_the_step=lambda: None):
    for x, y in data():
        mean(model(x), y).backward()
        before_the_step()
        update(optimizer)


@said("empty-step")
def a_step_before_the_first_backward():
    model, optimizer = with_sgd()
    optimizer.step()
    steps_with(optimizer, model)


@said("empty-step")
def a_step_before_the_only_window():
    model, optimizer = with_sgd()
    optimizer.step()
    mean(model(torch.ones(1, 3)), torch.tensor([1])).backward()
    update(optimizer)


@said("stale-gradients")
def a_backward_call_before_a_loop_of_two_updates():
    model = net()
    mean(model(torch.ones(1, 3)), torch.tensor([1])).backward()
    in_windows(mean, [1, 1], model)


@said("orphan-parameters", "advice")
@said("empty-step")
def an_optimizer_of_frozen_parameters_beside_another():
    model, frozen = net(), net().requires_grad_(False)
    idle = SGD(frozen.parameters(), lr=0.1)
    steps_with(SGD(model.parameters(), lr=0.1), model, before_the_step=idle.step)


@said("empty-step", "error")
def zeroing_before_every_step():
    model, optimizer = with_sgd()
    steps_with(optimizer, model, before_the_step=model.zero_grad)


@said("discarded-gradients")
def an_attack_whose_steps_are_clamped_away():
    model = net().requires_grad_(False)
    for x, y in data(2):
        change = torch.zeros_like(x, requires_grad=True)
        for _ in range(5):
            mean(model(x + change), y).backward()
            change.data.add_(change.grad.sign(), alpha=0.1).clamp_(-0.2, 0.2)
            change.grad.zero_()


@said("scheduler-cadence")
def a_new_scheduler_in_the_middle_of_a_window():
    model, optimizer = with_sgd()
    for _ in range(2):
        schedule = None
        for x, y in data(2):
            mean(model(x), y, 2).backward()
            schedule = schedule or ExponentialLR(optimizer, 0.9)
        update(optimizer)
        schedule.step()


def warmed_up(optimizer, updates, per_update=1):
    """A schedule of two parts, as long as a run of so many updates."""
    parts = LinearLR(optimizer, total_iters=4), CosineAnnealingLR(optimizer, updates * per_update - 4)
    return SequentialLR(optimizer, parts, milestones=[4])


@said("scheduler-cadence")
def a_schedule_of_two_parts_that_is_stepped_right_before_the_optimizer():
    model, optimizer = with_sgd()
    steps_with(optimizer, model, before_the_step=warmed_up(optimizer, 8).step)


def scheduled(schedule_of, count, every):
    """Updates from 4 micro-batches each; the schedule steps after `every` so many micro-batches."""
    model, optimizer = with_sgd()
    schedule = schedule_of(optimizer)
    for k, (x, y) in enumerate(data(count), start=1):
        mean(model(x), y, 4).backward()
        if k % 4 == 0:
            update(optimizer)
        if k % every == 0:
            schedule.step()


def with_a_limit_times_the_scale(limit, scale):
    def clip(model, optimizer, scaler):
        nn.utils.clip_grad_norm_(model.parameters(), limit * scaler.get_scale())

    scaled_steps(scale=scale, before_the_step=clip)


@said("clip-timing", "undecided")
def a_part_that_is_limited_before_another_loss_is_added():
    model, optimizer = with_sgd()
    for x, y in data():
        squares(model(x)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        mean(model(x), y).backward()
        update(optimizer)


@said("clip-timing")
def a_batch_without_a_loss():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data()):
        if k != 2:
            mean(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        update(optimizer)


@said("scaler-timing")
def a_penalty_without_a_scale_that_is_added_after_unscaling():
    def add(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        model.weight.square().sum().backward()

    scaled_steps(before_the_step=add)


@said("empty-step")
def a_step_that_the_scaler_skips_after_the_script_has_zeroed():
    def zero(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        if not model.weight.grad.isfinite().all():
            optimizer.zero_grad()

    scaled_steps([1.0, 1.0, 1.0, INFINITY, 1.0, 1.0], before_the_step=zero)


@said("empty-step", "error")
def a_window_whose_targets_are_all_masked():
    model, optimizer = with_sgd(momentum=0.9)
    for k in range(5):
        for x, y in data(2):
            mean(model(x), torch.full_like(y, -100) if k == 3 else y, 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@said("discarded-gradients", "undecided")
def updates_by_hand_whose_first_learning_rate_is_0():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data()):
        mean(model(x), y).backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.01 * k)
        optimizer.zero_grad()


@said("stale-gradients")
def a_first_micro_batch_of_its_own_line():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data()):
        loss = mean(model(x), y, 2)
        if k == 0:
            loss.backward(retain_graph=True)  # and the graph is drawn
        else:
            loss.backward()
        if k % 2:
            update(optimizer)


@said("held-graphs")
def a_loss_whose_gradients_are_asked_for_one_part_at_a_time():
    body, head = net(), nn.Linear(2, 2)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in data():
        loss = mean(head(body(x)), y)
        loss.backward(inputs=list(body.parameters()), retain_graph=True)
        loss.backward(inputs=list(head.parameters()))
        update(optimizer)


@said("loss-scale", "undecided")
def a_micro_batch_left_out_in_the_middle_of_an_epoch():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(DataLoader(data(16), batch_size=None), start=1):
        if k != 7:
            mean(model(x), y, 4).backward()
        if k % 4 == 0:
            update(optimizer)


@said("token-weights", "undecided")
def a_loss_of_each_of_two_data_sets():
    model, optimizer = with_sgd()

    def add(size):
        ((x, y),) = data(1, size)
        mean(model(x), y).backward()

    for _ in range(4):
        add(4)
        add(8)
        update(optimizer)


@said("loss-scale", "undecided")
def two_losses_through_a_helper_of_a_helper():
    model, optimizer = with_sgd()

    def back(loss):
        loss.backward()

    def add():
        ((x, y),) = data(1)
        back(mean(model(x), y))

    for _ in range(4):
        add()
        add()
        update(optimizer)


@said("irregular-window")
def a_first_micro_batch_that_is_given_up():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data(16)):
        mean(model(x), y, 4).backward()
        if k == 0:
            optimizer.zero_grad()
        if k % 4 == 3:
            update(optimizer)


@said("leftover-gradients", "undecided")
def windows_over_an_epochs_end_that_are_divided_by_hand():
    model, optimizer = with_sgd()
    held = 0
    for count in (10, 8):
        for k, (x, y) in enumerate(DataLoader(data(count), batch_size=None), start=1):
            F.cross_entropy(model(x), y, reduction="sum").backward()
            held += len(x)
            if k % 4 == 0:
                for p in model.parameters():
                    p.grad /= held
                update(optimizer)
                held = 0


@said("loss-scale", "undecided")
def an_optimizer_beside_one_that_steps_in_each_micro_batch():
    body, head = net(), nn.Linear(2, 2)
    slow, fast = SGD(body.parameters(), lr=0.1), SGD(head.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data(16), start=1):
        mean(head(body(x)), y).backward()
        update(fast)
        if k % 4 == 0:
            update(slow)


@said("clip-timing", "error")
def a_clip_after_the_step_where_momentum_is_not_kept_any_more():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data()):
        mean(model(x), y).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if k < 4:
            for p in model.parameters():
                p.grad.mul_(0.9)
        else:
            optimizer.zero_grad()


@said("clip-timing")
def the_part_of_each_agent_limited_by_itself():
    agents = net(), net()
    optimizer = SGD([p for agent in agents for p in agent.parameters()], lr=0.1)
    for x, y in data():
        for agent in agents:
            mean(agent(x), y).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.1)
        update(optimizer)


@said("clip-timing", "undecided")
def a_part_limited_by_itself_where_each_loss_has_batches_of_two_data_sets():
    model, optimizer = with_sgd()
    pairs = zip(DataLoader(data(), batch_size=None), DataLoader(data(), batch_size=None), strict=True)
    for (x, y), _ in pairs:
        mean(model(x), y, 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        _, (x, y) = next(pairs)
        mean(model(x), y, 2).backward()
        update(optimizer)


@said("discarded-gradients", "undecided")
def a_gradient_that_is_first_used_and_later_only_measured():
    model, optimizer = with_sgd()

    def back(loss):
        loss.backward()

    for k in range(8):
        for x, y in data(2 if k < 4 else 1):
            back(mean(model(x), y, 2))
        if k >= 4:
            optimizer.zero_grad()
            for x, y in data(2):
                mean(model(x), y, 2).backward()
        update(optimizer)


@said("leftover-gradients", "error")
def a_last_backward_call_beside_an_optimizer_that_is_later_given_noise():
    model, optimizer = with_sgd()
    other, noisy = with_sgd()
    for k, (x, y) in enumerate(data(3)):
        if k == 0:
            mean(other(x), y).backward()
        else:
            for p in other.parameters():
                p.grad = torch.randn_like(p)
        update(noisy)
        mean(model(x), y, 2).backward()
        if k == 1:
            update(optimizer)


@said("leftover-gradients", "undecided")
def a_resumed_run_that_only_adds_the_last_micro_batch_of_a_window():
    model, first = with_sgd()
    resumed, second = with_sgd()
    for k, (x, y) in enumerate(data(7), start=1):
        mean(model(x), y, 4).backward()
        if k == 4:
            update(first)
    for new, old in zip(resumed.parameters(), model.parameters(), strict=True):
        new.grad = old.grad.clone()
    for k, (x, y) in enumerate(data(5), start=8):
        mean(resumed(x), y, 4).backward()
        if k % 4 == 0:
            update(second)


@said("discarded-gradients", "undecided")
def more_single_steps_left_out_than_there_are_small_integers():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data(620)):
        mean(model(x), y).backward()
        if k >= 520 or k % 2:
            optimizer.step()
        optimizer.zero_grad()


@said("orphan-parameters")
def a_model_whose_gradients_are_only_read():
    model, optimizer = with_sgd()
    probe = net()
    for x, y in data():
        mean(probe(x), y).backward()
        assert probe.weight.grad.isfinite().all()
        probe.zero_grad()
        mean(model(x), y).backward()
        update(optimizer)


OF_ONE_LINE = {
    "a few losses kept": ("held-graphs", [], lambda: with_the_last_ones_kept(8, kept=4)),
    "a few of many losses kept": ("held-graphs", [], lambda: with_the_last_ones_kept(40, kept=6)),
    "a few features kept": ("held-graphs", [], lambda: with_the_last_ones_kept(7, kept=5, losses=False)),
    "a few of many features kept": ("held-graphs", [], lambda: with_the_last_ones_kept(40, kept=10, losses=False)),
    "a first window that overflows": (
        "loss-scale", [], lambda: scaled([[(torch.ones(4, 3), INFINITY)] * 2] + [[(torch.ones(4, 3), 0.5)] * 2] * 4),
    ),
    "an uneven window that overflows": (
        "token-weights",
        [],
        lambda: scaled([[(torch.ones(2, 3), 0.5), (BROKEN, 0.5)]] + [[(torch.ones(4, 3), 0.5)] * 2] * 4),
    ),
    "a fused sgd all of whose windows overflow": (
        "scaler-timing", [], lambda: scaled([[(torch.ones(4, 3), INFINITY)]] * 3, momentum=0.9, fused=True),
    ),
    "gradients that are assigned and clipped": ("clip-timing", [], lambda: assigned()),
    "assigned gradients that are limited before a penalty is added": (
        "clip-timing", QUESTION, lambda: assigned(add_to=lambda model: model.weight.square().sum().backward()),
    ),
    "one scheduler step inside a window": (
        "scheduler-cadence", [], lambda: stepped(4, [(1, "after"), (2, "inside"), (2, "after"), (3, "after")]),
    ),
    "a scheduler step inside two windows": (
        "scheduler-cadence", ERROR, lambda: stepped(4, [(1, "inside"), (2, "inside"), (3, "after")]),
    ),
    "a schedule per epoch after a skipped update": (
        "scheduler-cadence", [], lambda: an_epoch_that_ends_with_an_overflow(4, epochs=2),
    ),
    "a schedule per short epoch after a skipped update": (
        "scheduler-cadence", [], lambda: an_epoch_that_ends_with_an_overflow(2, epochs=4),
    ),
    "an optimizer of other tensors than those that are trained": (
        "empty-step", ERROR, lambda: steps_with(SGD(net().parameters(), lr=0.1), net()),
    ),
    "a schedule of two parts whose length is counted in micro batches": (
        "scheduler-cadence",
        QUESTION,
        lambda: scheduled(lambda optimizer: warmed_up(optimizer, 4, per_update=4), 16, every=1),
    ),
    "a schedule per epoch whose end is in the middle of a window": (
        "scheduler-cadence", [], lambda: scheduled(lambda optimizer: ExponentialLR(optimizer, 0.9), 40, every=10),
    ),
    "a limit times the scale": ("clip-timing", [], lambda: with_a_limit_times_the_scale(0.2, 1024.0)),
    "a limit times a scale that has fallen below 1": (
        "clip-timing", [], lambda: with_a_limit_times_the_scale(400.0, 0.5),
    ),
}  # fmt: skip
for name, (rule, levels, run) in OF_ONE_LINE.items():
    row(name, run, rule, *levels)
