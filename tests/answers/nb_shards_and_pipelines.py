"""Answers to "pipeline_update": one update from several calls of a pipeline."""

import torch
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

from answers import right, wrong


def valid(targets):
    return int((targets != -100).sum())


def by_sums(total):
    def loss_fn(scores, targets):
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum") / total

    return loss_fn


def mean(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def update(stage, optimizer, calls, n, loss_fn, scale_grads=False, zero=True, step=True):
    schedule = Schedule1F1B(stage, n, loss_fn=loss_fn, scale_grads=scale_grads)
    if zero:
        optimizer.zero_grad()
    for inputs, targets in calls:
        schedule.step(inputs, target=targets)
    if step:
        optimizer.step()


@right("pipeline_update")
def pipeline_update(stage, optimizer, calls, n):
    total = sum(int((targets != -100).sum()) for _, targets in calls)

    def loss_fn(scores, targets):
        flat = scores.flatten(0, 1), targets.flatten()
        return F.cross_entropy(*flat, reduction="sum") / total

    schedule = Schedule1F1B(stage, n, loss_fn=loss_fn, scale_grads=False)
    optimizer.zero_grad()
    for inputs, targets in calls:
        schedule.step(inputs, target=targets)
    optimizer.step()


@right("pipeline_update")
def with_gpipe_and_the_division_at_the_end(stage, optimizer, calls, n):
    schedule = ScheduleGPipe(stage, n, loss_fn=by_sums(1), scale_grads=False)
    stage.submod.zero_grad()
    total = 0
    for inputs, targets in calls:
        schedule.step(inputs, target=targets)
        total += valid(targets)
    for p in stage.submod.parameters():
        p.grad /= total
    optimizer.step()


@right("pipeline_update")
def with_means_and_shares(stage, optimizer, calls, n):
    total = sum(valid(targets) for _, targets in calls)

    def loss_fn(scores, targets):
        if not valid(targets):
            return scores.sum() * 0
        return mean(scores, targets) * (valid(targets) / total)

    update(stage, optimizer, calls, n, loss_fn)


@right("pipeline_update")
def with_scale_grads_undone_for_one_schedule_a_call(stage, optimizer, calls, n):
    total = torch.tensor([valid(targets) for _, targets in calls]).sum()
    optimizer.zero_grad()
    kept = []
    for inputs, targets in calls:
        Schedule1F1B(stage, n, loss_fn=by_sums(total / n)).step(inputs, target=targets)
        kept.append([p.grad for p in stage.submod.parameters()])
        optimizer.zero_grad()
    for p, *grads in zip(stage.submod.parameters(), *kept, strict=True):
        p.grad = sum(grads)
    optimizer.step()


@wrong("pipeline_update", "token-weights", says="adds up means")
def means_of_one_call(stage, optimizer, calls, n):
    update(stage, optimizer, [tuple(map(torch.cat, zip(*calls, strict=True)))], n, mean, scale_grads=True)


@wrong("pipeline_update", "scale-grads", says="once more")
def sums_over_the_total_and_the_default(stage, optimizer, calls, n):
    update(stage, optimizer, calls, n, by_sums(sum(valid(t) for _, t in calls)), scale_grads=True)


@wrong("pipeline_update", "forgotten-calls", says="again at every call")
def the_default_undone_for_one_call(stage, optimizer, calls, n):
    update(stage, optimizer, calls, n, by_sums(sum(valid(t) for _, t in calls) / n), scale_grads=True)


@wrong("pipeline_update", "own-call", says="2 calls with [6, 6] and [6, 6] valid targets")
def total_of_each_call(stage, optimizer, calls, n):
    optimizer.zero_grad()
    for inputs, targets in calls:
        update(stage, optimizer, [(inputs, targets)], n, by_sums(valid(targets)), zero=False, step=False)
    optimizer.step()


@wrong("pipeline_update", "irregular-window")
def a_step_for_each_call(stage, optimizer, calls, n):
    total = sum(valid(t) for _, t in calls)
    for call in calls:
        update(stage, optimizer, [call], n, by_sums(total))


@wrong("pipeline_update", "stale-gradients", says="old gradient")
def never_zeroed(stage, optimizer, calls, n):
    update(stage, optimizer, calls, n, by_sums(sum(valid(t) for _, t in calls)), zero=False)


@wrong("pipeline_update", "leftover-gradients", says="no step")
def never_stepped(stage, optimizer, calls, n):
    update(stage, optimizer, calls, n, by_sums(sum(valid(t) for _, t in calls)), step=False)


@wrong("pipeline_update", "empty-step")
def zeroed_before_the_step(stage, optimizer, calls, n):
    update(stage, optimizer, calls, n, by_sums(1), step=False)
    optimizer.zero_grad()
    optimizer.step()


@wrong("pipeline_update", "loss-scale", says="micro-batches only")
def undivided_sums_and_the_default(stage, optimizer, calls, n):
    update(stage, optimizer, calls, n, by_sums(1), scale_grads=True)


@wrong("pipeline_update", "nan")
def means_and_shares_without_a_guard(stage, optimizer, calls, n):
    total = sum(valid(t) for _, t in calls)

    def loss_fn(scores, targets):
        chosen = scores.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        mask = targets != -100
        return -(chosen * mask).sum() / mask.sum() * (valid(targets) / total)

    update(stage, optimizer, calls, n, loss_fn)


@wrong("pipeline_update", "changed-input")
def pads_in_place(stage, optimizer, calls, n):
    pipeline_update(stage, optimizer, calls, n)
    for _, targets in calls:
        targets.fill_(-100)


@wrong("pipeline_update", "not-attempted")
def nothing(stage, optimizer, calls, n): ...


@wrong("pipeline_update", "raises")
def on_a_schedule_of_four(stage, optimizer, calls, n):
    Schedule1F1B(stage, 0, loss_fn=mean)
