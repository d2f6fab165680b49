"""Correct programs for the guards of the rules: each would raise a false alarm, or a worse one, without its guard."""

from collections import deque

import pytest
import torch
from runs import data, net
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader

from course_utils.audit import audit, judge
from course_utils.audit.history import Clip
from course_utils.audit.rules.shapes import odd_window, of_any_length

PROGRAMS = []


def said(rule, *levels, window=None):
    """The findings of this rule in the decorated program, by their levels; none if it is left alone."""
    return lambda program: PROGRAMS.append(pytest.param(program, rule, levels, window, id=program.__name__)) or program


def updates(model, optimizer, count=4, n=1):
    for _ in range(count):
        for x, y in data(n):
            (F.cross_entropy(model(x.to(model[0].weight.dtype)), y) / n).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("low-precision-accumulation")
def bfloat16_without_accumulation():
    model = nn.Sequential(net()).to(torch.bfloat16)
    updates(model, SGD(model.parameters(), lr=0.1))


@said("batchnorm")
def batchnorm_without_accumulation():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    updates(model, SGD(model.parameters(), lr=0.1))


@said("held-graphs", "undecided")
def one_loss_of_a_whole_run_that_counts_twice():
    model = nn.Sequential(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    ((x, y),) = data(1)
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    updates(model, optimizer)


def with_the_last_ones_kept(count, kept, losses=True):
    body, head, last = net(), net(), deque(maxlen=kept)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in data(count):
        features = body(x)
        loss = F.cross_entropy(head(features.repeat(1, 2)[:, :3]), y)
        last.append(loss if losses else features)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@said("held-graphs")
def a_few_losses_kept():
    with_the_last_ones_kept(8, kept=4)


@said("held-graphs")
def a_few_of_many_losses_kept():
    with_the_last_ones_kept(40, kept=6)


@said("held-graphs")
def a_few_features_kept():
    with_the_last_ones_kept(7, kept=5, losses=False)


@said("held-graphs")
def a_few_of_many_features_kept():
    with_the_last_ones_kept(40, kept=10, losses=False)


@said("held-graphs")
def two_losses_of_unrelated_forward_passes():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for (x, y), (u, v) in zip(data(), data(), strict=True):
        (F.cross_entropy(model(x), y) + F.cross_entropy(model(u), v)).backward()
        optimizer.step()
        optimizer.zero_grad()


def scaled(windows, **options):
    """Windows of micro-batches, each as its inputs and what its loss is multiplied by."""
    model, scaler = net(), GradScaler("cpu", init_scale=4.0)
    optimizer = SGD(model.parameters(), lr=0.1, **options)
    for window in windows:
        for x, factor in window:
            scaler.scale(F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@said("loss-scale")
def a_first_window_that_overflows():
    scaled([[(torch.ones(4, 3), float("inf"))] * 2] + [[(torch.ones(4, 3), 0.5)] * 2] * 4)


def windows_of(sizes, factor):
    """The mean loss of each micro-batch, in windows of these sizes, times `factor(size)`."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for size in sizes:
        for x, y in data(size):
            (F.cross_entropy(model(x), y) * factor(size)).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale")
def a_tail_that_counts_what_its_author_gave_it():
    windows_of([4, 4, 4, 2], {4: 0.25, 2: 0.4}.get)


@said("loss-scale")
def a_short_first_window_of_a_resumed_run():
    windows_of([2, 4, 4, 4], lambda size: 0.25)


@said("irregular-window")
def a_long_window_of_small_micro_batches_that_was_planned():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    usual, small = (3, 7, 4, 6), (1, 1, 2, 1, 1, 1, 1, 1)
    for sizes in (usual, usual, small, usual, usual):
        for size in sizes:
            ((x, y),) = data(1, size)
            (F.cross_entropy(model(x), y, reduction="sum") / sum(sizes)).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("irregular-window")
def two_losses_that_count_half_each():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data():
        out = model(x)
        (0.5 * F.cross_entropy(out, y) + 0.5 * F.mse_loss(out, torch.zeros_like(out))).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "undecided")
def two_tasks_with_a_head_each_in_turn():
    body, heads = net(), (nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = SGD([p for part in (body, *heads) for p in part.parameters()], lr=0.1)
    for _ in range(4):
        for head in heads:
            for x, y in data(1):
                F.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("leftover-gradients", window=7)
def windows_of_a_declared_size_and_shorter_ones():
    windows_of([4, 4, 7, 4, 4, 7], lambda size: 0.25)


@said("irregular-window", window=4)
def a_short_tail_of_a_declared_size():
    windows_of([4, 4, 4, 2], lambda size: 1 / size)


@said("irregular-window", "error", window=4)
def a_short_first_window_of_a_declared_size():
    windows_of([2, 4, 4, 4], lambda size: 1 / size)


@said("clip-timing")
def gradients_that_are_assigned_and_clipped():
    model = net()
    optimizer, parameters = SGD(model.parameters(), lr=0.1), list(model.parameters())
    for x, y in data():
        for p, gradient in zip(parameters, torch.autograd.grad(F.cross_entropy(model(x), y), parameters), strict=True):
            p.grad = gradient
        nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
        optimizer.zero_grad()


@said("scaler-timing", "error")
def two_scalers_in_one_loop():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        scaler = GradScaler("cpu", init_scale=4.0)
        for x, y in data(3):
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@said("scaler-timing")
def a_fused_sgd_all_of_whose_windows_overflow():
    scaled([[(torch.ones(4, 3), float("inf"))]] * 3, momentum=0.9, fused=True)


def stepped(windows, at):
    """Updates from two micro-batches each; the schedule steps at some moments: (window, "inside" or "after")."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = ExponentialLR(optimizer, 0.9)
    for k in range(windows):
        for moment in ("inside", "after"):
            ((x, y),) = data(1)
            (F.cross_entropy(model(x), y) / 2).backward()
            if moment == "after":
                optimizer.step()
                optimizer.zero_grad()
            if (k, moment) in at:
                schedule.step()


@said("scheduler-cadence")
def one_scheduler_step_inside_a_window():
    stepped(4, [(1, "after"), (2, "inside"), (2, "after"), (3, "after")])


@said("scheduler-cadence", "error")
def a_scheduler_step_inside_two_windows():
    stepped(4, [(1, "inside"), (2, "inside"), (3, "after")])


def an_epoch_that_ends_with_an_overflow(updates, epochs=2):
    """The schedule steps once in each epoch; the last update of the last one is skipped."""
    model, scaler = net(), GradScaler("cpu", init_scale=4.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = ExponentialLR(optimizer, 0.9)
    last = epochs * updates
    for k, (x, y) in enumerate(data(last), start=1):
        scaler.scale(F.cross_entropy(model(x), y) * (float("inf") if k == last else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if k % updates == 0:
            schedule.step()


@said("scheduler-cadence")
def a_schedule_per_epoch_after_a_skipped_update():
    an_epoch_that_ends_with_an_overflow(4)


@said("scheduler-cadence")
def a_schedule_per_short_epoch_after_a_skipped_update():
    an_epoch_that_ends_with_an_overflow(2, epochs=4)


def steps_with(optimizer, model, before_the_step=lambda: None):
    for x, y in data():
        F.cross_entropy(model(x), y).backward()
        before_the_step()
        optimizer.step()
        optimizer.zero_grad()


@said("empty-step", "advice")
def a_step_before_the_first_backward():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.step()
    steps_with(optimizer, model)


@said("empty-step", "advice")
def a_step_before_the_only_window():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.step()
    updates(nn.Sequential(model), optimizer, count=1)


@said("stale-gradients")
def a_backward_call_before_a_loop_of_two_updates():
    model = nn.Sequential(net())
    F.cross_entropy(model(data(1)[0][0]), data(1)[0][1]).backward()
    updates(model, SGD(model.parameters(), lr=0.1), count=2)


@said("orphan-parameters", "advice")
@said("empty-step")
def an_optimizer_of_frozen_parameters_beside_another():
    model, frozen = net(), net().requires_grad_(False)
    idle = SGD(frozen.parameters(), lr=0.1)
    steps_with(SGD(model.parameters(), lr=0.1), model, before_the_step=idle.step)


@said("empty-step", "error")
def an_optimizer_of_other_tensors_than_those_that_are_trained():
    steps_with(SGD(net().parameters(), lr=0.1), net())


@said("empty-step", "error")
def zeroing_before_every_step():
    model = net()
    steps_with(SGD(model.parameters(), lr=0.1), model, before_the_step=model.zero_grad)


@said("discarded-gradients")
def an_attack_whose_steps_are_clamped_away():
    model = net().requires_grad_(False)
    for x, y in data(2):
        change = torch.zeros_like(x, requires_grad=True)
        for _ in range(5):
            F.cross_entropy(model(x + change), y).backward()
            change.data.add_(change.grad.sign(), alpha=0.1).clamp_(-0.2, 0.2)
            change.grad.zero_()


@said("scheduler-cadence")
def a_new_scheduler_in_the_middle_of_a_window():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        schedule = None
        for x, y in data(2):
            (F.cross_entropy(model(x), y) / 2).backward()
            schedule = schedule or ExponentialLR(optimizer, 0.9)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def warmed_up(optimizer, updates, per_update=1):
    """A schedule of two parts, as long as a run of so many updates."""
    parts = LinearLR(optimizer, total_iters=4), CosineAnnealingLR(optimizer, updates * per_update - 4)
    return SequentialLR(optimizer, parts, milestones=[4])


@said("scheduler-cadence")
def a_schedule_of_two_parts_that_is_stepped_right_before_the_optimizer():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = warmed_up(optimizer, 8)
    for x, y in data(8):
        F.cross_entropy(model(x), y).backward()
        schedule.step()
        optimizer.step()
        optimizer.zero_grad()


@said("scheduler-cadence", "undecided")
def a_schedule_of_two_parts_whose_length_is_counted_in_micro_batches():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = warmed_up(optimizer, 4, per_update=4)
    for k, (x, y) in enumerate(data(16), start=1):
        (F.cross_entropy(model(x), y) / 4).backward()
        if k % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()


@said("scheduler-cadence")
def a_schedule_per_epoch_whose_end_is_in_the_middle_of_a_window():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = ExponentialLR(optimizer, 0.9)
    for k, (x, y) in enumerate(data(40), start=1):
        (F.cross_entropy(model(x), y) / 4).backward()
        if k % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if k % 10 == 0:
            schedule.step()


@said("clip-timing", "undecided")
def assigned_gradients_that_are_limited_before_a_penalty_is_added():
    model = net()
    optimizer, parameters = SGD(model.parameters(), lr=0.1), list(model.parameters())
    for x, y in data():
        for p, gradient in zip(parameters, torch.autograd.grad(F.cross_entropy(model(x), y), parameters), strict=True):
            p.grad = gradient
        nn.utils.clip_grad_norm_(parameters, 0.1)
        model.weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def with_a_limit_times_the_scale(limit, scale):
    model, scaler = net(), GradScaler("cpu", init_scale=scale)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data():
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@said("clip-timing")
def a_limit_times_the_scale():
    with_a_limit_times_the_scale(0.2, 1024.0)


@said("clip-timing")
def a_limit_times_a_scale_that_has_fallen_below_1():
    with_a_limit_times_the_scale(400.0, 0.5)


@said("clip-timing", "undecided")
def a_part_that_is_limited_before_another_loss_is_added():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data():
        F.mse_loss(model(x), torch.zeros(len(x), 2)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("clip-timing")
def a_batch_without_a_loss():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data()):
        if k != 2:
            F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@said("scaler-timing")
def a_penalty_without_a_scale_that_is_added_after_unscaling():
    model, scaler = net(), GradScaler("cpu", init_scale=4.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data():
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        model.weight.square().sum().backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@said("empty-step")
def a_step_that_the_scaler_skips_after_the_script_has_zeroed():
    model, scaler = net(), GradScaler("cpu", init_scale=4.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data()):
        scaler.scale(F.cross_entropy(model(x), y) * (float("inf") if k == 3 else 1.0)).backward()
        scaler.unscale_(optimizer)
        if not model.weight.grad.isfinite().all():
            optimizer.zero_grad()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@said("empty-step", "error")
def a_window_whose_targets_are_all_masked():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for k in range(5):
        for x, y in data(2):
            (F.cross_entropy(model(x), torch.full_like(y, -100) if k == 3 else y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@said("discarded-gradients", "undecided")
def updates_by_hand_whose_first_learning_rate_is_0():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data()):
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.01 * k)
        optimizer.zero_grad()


@said("stale-gradients")
def a_first_micro_batch_of_its_own_line():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data()):
        loss = F.cross_entropy(model(x), y) / 2
        if k == 0:
            loss.backward(retain_graph=True)  # and the graph is drawn
        else:
            loss.backward()
        if k % 2:
            optimizer.step()
            optimizer.zero_grad()


@said("held-graphs")
def a_loss_whose_gradients_are_asked_for_one_part_at_a_time():
    body, head = net(), nn.Linear(2, 2)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in data():
        loss = F.cross_entropy(head(body(x)), y)
        loss.backward(inputs=list(body.parameters()), retain_graph=True)
        loss.backward(inputs=list(head.parameters()))
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "undecided")
def a_micro_batch_left_out_in_the_middle_of_an_epoch():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(DataLoader(data(16), batch_size=None), start=1):
        if k != 7:
            (F.cross_entropy(model(x), y) / 4).backward()
        if k % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


BROKEN = torch.full((4, 3), float("inf"))


@said("token-weights")
def an_uneven_window_that_overflows():
    scaled([[(torch.ones(2, 3), 0.5), (BROKEN, 0.5)]] + [[(torch.ones(4, 3), 0.5)] * 2] * 4)


@said("irregular-window")
def first_updates_of_a_small_loss_that_overflow():
    scaled([[(BROKEN, 0.25)]] * 3 + [[(torch.ones(4, 3), 0.25)]])


@said("token-weights", "undecided")
def a_loss_of_each_of_two_data_sets():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def add(size):
        ((x, y),) = data(1, size)
        F.cross_entropy(model(x), y).backward()

    for _ in range(4):
        add(4)
        add(8)
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "undecided")
def two_losses_through_a_helper_of_a_helper():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def back(loss):
        loss.backward()

    def add():
        ((x, y),) = data(1)
        back(F.cross_entropy(model(x), y))

    for _ in range(4):
        add()
        add()
        optimizer.step()
        optimizer.zero_grad()


@said("irregular-window", "undecided")
def sums_over_episodes():
    windows_of([5, 5, 9, 5, 5, 8, 5, 5], lambda size: 1.0)


@said("irregular-window")
def a_first_micro_batch_that_is_given_up():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data(16)):
        (F.cross_entropy(model(x), y) / 4).backward()
        if k == 0:
            optimizer.zero_grad()
        if k % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@said("leftover-gradients", "undecided")
def windows_over_an_epochs_end_that_are_divided_by_hand():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    held = 0
    for loader in (DataLoader(data(10), batch_size=None), DataLoader(data(8), batch_size=None)):
        for k, (x, y) in enumerate(loader, start=1):
            F.cross_entropy(model(x), y, reduction="sum").backward()
            held += len(x)
            if k % 4 == 0:
                for p in model.parameters():
                    p.grad /= held
                optimizer.step()
                optimizer.zero_grad()
                held = 0


@said("loss-scale", "undecided")
def a_sum_over_a_last_micro_batch_of_one_sample():
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for size in (4, 4, 1):
            x = torch.randn(size, 3)
            (F.mse_loss(model(x).squeeze(), x.sum(1).squeeze(), reduction="sum") / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "undecided")
def an_optimizer_beside_one_that_steps_in_each_micro_batch():
    body, head = net(), nn.Linear(2, 2)
    slow, fast = SGD(body.parameters(), lr=0.1), SGD(head.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data(16), start=1):
        F.cross_entropy(head(body(x)), y).backward()
        fast.step()
        fast.zero_grad()
        if k % 4 == 0:
            slow.step()
            slow.zero_grad()


def two_losses_in_each(n, loss):
    """Windows of n micro-batches, of each of which `loss(cross entropy, squares)` is taken."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in data(n):
            out = model(x)
            loss(F.cross_entropy(out, y), F.mse_loss(out, torch.zeros_like(out))).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "undecided")
def weights_of_three_and_five_over_eight():
    two_losses_in_each(8, lambda one, other: 3 / 8 * one + 5 / 8 * other)


@said("loss-scale")
def weights_that_add_up_to_the_window_and_are_divided_by_it():
    two_losses_in_each(4, lambda one, other: (1.4 * one + 2.6 * other) / 4)


@said("loss-scale", "undecided")
def a_factor_that_the_first_micro_batch_has_in_two_parts():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for k, (x, y) in enumerate(data(4)):
            loss = F.cross_entropy(model(x), y)
            (loss * 4 * 0.7 if k == 0 else loss * 2.8).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale")
def a_penalty_that_is_a_sum_beside_a_mean():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in data(4):
            out = model(x)
            (F.cross_entropy(out, y) / 4 + 0.003 * out.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "undecided")
def three_tasks_with_an_average_of_two_losses_each():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def add():
        ((x, y),) = data(1)
        out = model(x)
        (0.7 * F.cross_entropy(out, y) + 0.3 * F.mse_loss(out, torch.zeros_like(out))).backward()

    for _ in range(3):
        add()
        add()
        add()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "undecided")
def an_average_of_three_alike_with_a_weight_of_two():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in data(2):
            out = model(x)
            (sum(F.cross_entropy(out / t, y) for t in (1.0, 2.0, 3.0)) * 2.0 / 6).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale")
def a_sum_that_is_divided_by_the_window_first():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, _ in data(2):
            (0.3 * F.mse_loss(model(x), torch.zeros(len(x), 2), reduction="sum") / 2 / len(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("irregular-window", "error")
def a_first_window_of_one_less_whose_losses_nobody_knows():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, _) in enumerate(data(15), start=2):
        (model(x).abs().max() / 4).backward()
        if k % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@said("loss-scale")
def weights_around_1_in_windows_and_a_tail():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for weights in ((1.2, 1.1, 0.9, 0.8), (1.2, 1.1, 0.9, 0.8), (1.2, 0.8)):
        for weight, (x, y) in zip(weights, data(len(weights)), strict=True):
            (F.cross_entropy(model(x), y) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("irregular-window", "error")
def a_first_window_of_one_whose_losses_nobody_knows():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, _) in enumerate(data(17)):
        (model(x).abs().max() / 4).backward()
        if k % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@said("irregular-window")
def a_long_window_that_was_planned_with_a_penalty_that_was_not():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for size in (4, 4, 8, 4, 4, 4):
        for x, y in data(size):
            out = model(x)
            (0.01 * F.mse_loss(out, torch.zeros_like(out)) + F.cross_entropy(out, y) / size).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("irregular-window", "undecided")
def sums_over_all_numbers_of_an_episode():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for size in (2, 2, 3, 2, 2, 5, 2):
        for x, _ in data(size):
            model(x).exp().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@said("clip-timing", "error")
def a_clip_after_the_step_where_momentum_is_not_kept_any_more():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data()):
        F.cross_entropy(model(x), y).backward()
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
            F.cross_entropy(agent(x), y).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@said("clip-timing", "undecided")
def a_part_limited_by_itself_where_each_loss_has_batches_of_two_data_sets():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pairs = zip(DataLoader(data(), batch_size=None), DataLoader(data(), batch_size=None), strict=True)
    for (x, y), _ in pairs:
        (F.cross_entropy(model(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        _, (x, y) = next(pairs)
        (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("discarded-gradients", "undecided")
def a_gradient_that_is_first_used_and_later_only_measured():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def back(loss):
        loss.backward()

    for k in range(8):
        for x, y in data(2 if k < 4 else 1):
            back(F.cross_entropy(model(x), y) / 2)
        if k >= 4:
            optimizer.zero_grad()
            for x, y in data(2):
                (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def with_a_trained_weight(loss):
    """Windows of two undivided losses, of each of which `loss(cross entropy, weight)` is taken."""
    model, weight = net(), nn.Parameter(torch.tensor(1.0))
    optimizer = SGD([*model.parameters(), weight], lr=0.1)
    for _ in range(3):
        for x, y in data(2):
            loss(F.cross_entropy(model(x), y), weight).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("loss-scale", "error")
def a_loss_times_a_weight_that_is_trained():
    with_a_trained_weight(lambda loss, weight: loss * weight)


@said("loss-scale", "undecided")
def a_loss_over_a_weight_that_is_trained():
    with_a_trained_weight(lambda loss, weight: 0.3 * loss / weight)


@said("loss-scale")
def a_loss_beside_the_largest_of_masked_numbers():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in data(2):
            out = model(x)
            ((F.cross_entropy(out, y) + (out * torch.rand(4, 2)).abs().max()) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@said("leftover-gradients", "error")
def a_last_backward_call_beside_an_optimizer_that_is_later_given_noise():
    model, other = net(), net()
    optimizer, noisy = SGD(model.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data(3)):
        if k == 0:
            F.cross_entropy(other(x), y).backward()
        else:
            for p in other.parameters():
                p.grad = torch.randn_like(p)
        noisy.step()
        noisy.zero_grad()
        (F.cross_entropy(model(x), y) / 2).backward()
        if k == 1:
            optimizer.step()
            optimizer.zero_grad()


@said("leftover-gradients", "undecided")
def a_resumed_run_that_only_adds_the_last_micro_batch_of_a_window():
    model, resumed = net(), net()
    first, second = SGD(model.parameters(), lr=0.1), SGD(resumed.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data(7), start=1):
        (F.cross_entropy(model(x), y) / 4).backward()
        if k == 4:
            first.step()
            first.zero_grad()
    for new, old in zip(resumed.parameters(), model.parameters(), strict=True):
        new.grad = old.grad.clone()
    for k, (x, y) in enumerate(data(5), start=8):
        (F.cross_entropy(resumed(x), y) / 4).backward()
        if k % 4 == 0:
            second.step()
            second.zero_grad()


@said("discarded-gradients", "undecided")
def more_single_steps_left_out_than_there_are_small_integers():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for k, (x, y) in enumerate(data(620)):
        F.cross_entropy(model(x), y).backward()
        if k >= 520 or k % 2:
            optimizer.step()
        optimizer.zero_grad()


@said("orphan-parameters")
def a_model_whose_gradients_are_only_read():
    model, probe = net(), net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data():
        F.cross_entropy(probe(x), y).backward()
        assert probe.weight.grad.isfinite().all()
        probe.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("program", "rule", "levels", "window"), PROGRAMS)
def test_a_guard_keeps_a_rule_from_a_false_alarm(program, rule, levels, window):
    with audit(window=window) as report:
        program()
    assert report.history.trace.events
    assert tuple(finding.level for finding in report.findings if finding.rule == rule) == levels


def found_in(history):
    return [(finding.rule, finding.level) for finding in judge(history)]


def test_the_scale_is_that_of_windows_of_the_size_that_was_declared_last():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit(window=1) as report:
        for size in (1, 1, 1, 4, 4):
            report.declare_window(size)
            for x, y in data(size):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert found_in(report.history) == [("loss-scale", "error")]


def test_windows_that_hold_another_loss_are_not_judged_by_their_size():
    g, d = net(), nn.Linear(2, 1)
    of_g, of_d = SGD(g.parameters(), lr=0.1), SGD(d.parameters(), lr=0.1)

    def loss(samples, label):
        return F.binary_cross_entropy_with_logits(d(samples), torch.full((len(samples), 1), label))

    with audit() as report:
        for _ in range(4):
            for x, _ in data(2):
                (loss(g(x).detach(), 0.0) / 2).backward()
            of_d.step()
            of_d.zero_grad()
            for x, _ in data(3):
                (loss(g(x), 1.0) / 3).backward()
            of_g.step()
            of_g.zero_grad()
    assert [w.size for w in report.history.of(report.history.lanes[0])] == [2, 5, 5, 5]
    rules = {rule for rule, _ in found_in(report.history)}
    assert "foreign-gradients" in rules
    assert rules.isdisjoint({"irregular-window", "loss-scale"})


def test_an_update_that_was_skipped_says_nothing_about_the_means_of_ranks():
    with audit() as report:
        scaled([[(BROKEN[:2], 0.5)] * 2] + [[(torch.ones(4, 3), 0.5)] * 2] * 4)
    for call in report.history.backwards:
        call.ranks = 2
    assert found_in(report.history) == []


@pytest.mark.parametrize(("ranks", "findings"), [(1, []), (2, [("sync-cadence", "advice")])])
def test_one_process_alone_may_leave_out_no_sync(ranks, findings):
    with audit() as report:
        windows_of([4, 4], lambda size: 1 / size)
    for call in report.history.backwards:
        call.synced, call.ranks = True, ranks
    assert found_in(report.history) == findings


@pytest.mark.parametrize(
    ("total", "norm"), [(None, None), (2.0, 2.0), (torch.tensor(2.0), 2.0), (torch.tensor(float("inf")), None)]
)
def test_what_was_clipped_has_a_norm_if_that_is_known_and_finite(total, norm):
    assert Clip("train.py:1", 1, total, scaled=1.0, late=False).norm == norm


def test_on_ranks_a_window_of_different_losses_is_not_compared():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for other in (F.cross_entropy, F.multi_margin_loss, F.cross_entropy):
            for loss, (x, y) in zip((F.cross_entropy, other), data(2), strict=True):
                (loss(model(x), y) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    for call in report.history.backwards:
        call.ranks = 2
    assert found_in(report.history) == []
    assert not report.history.failed_rules


def test_a_sum_over_samples_and_numbers_is_a_mean_that_nothing_divides():
    model = nn.Linear(3, 16)  # as many numbers as divide a loss that is divided by the window twice
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for _ in range(3):
            for x, _ in data(4):
                (F.mse_loss(model(x), torch.randn(4, 16), reduction="sum") / 4 / 16).backward()
            optimizer.step()
            optimizer.zero_grad()
    (finding,) = report.findings
    assert (finding.level, finding.evidence["factor"]) == ("error", pytest.approx(4.0))


def test_a_sum_whose_weight_is_0_is_divided_by_nothing():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for _ in range(3):
            for x, y in data(4):
                out = model(x)
                (F.cross_entropy(out, y) / 4 + 0.0 * out.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert report.findings == []
    assert not report.history.failed_rules


def test_of_five_windows_two_are_not_most():
    assert odd_window([1, 4, 4, 2, 6], set(), 4) is None


def test_windows_of_one_are_of_any_length_where_longer_ones_differ():
    assert of_any_length([1, 2, 1, 1, 7], 1)
    assert not of_any_length([2, 4, 2, 2, 6], 2)


def test_a_call_that_an_update_by_hand_uses_has_its_lane_once():
    model = nn.Linear(8, 8)
    with audit() as report:
        for x in torch.randn(6, 4, 8):
            model(x).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
            model.zero_grad()
    assert len(report.history.windows) == 6
    assert {len(call.lanes) for call in report.history.backwards} == {1}


def test_gradients_of_a_copy_that_are_written_into_zeros_are_given():
    model, copy = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = SGD(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with audit() as report:
        for x in torch.randn(6, 4, 8):
            copy.load_state_dict(model.state_dict())
            copy(x).square().mean().backward()
            for p, other in zip(model.parameters(), copy.parameters(), strict=True):
                p.grad.copy_(other.grad)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            copy.zero_grad()
    assert [*report.history.given.values()] == ["SGD"]
