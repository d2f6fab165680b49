"""Answers to "two_bugs": a loop with a short window and a clip."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from answers import outcomes, right, wrong
from answers.loops import squares
from course_utils import mlp, train_epoch, windows


@right("two_bugs")
def by_windows(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


@right("two_bugs")
def by_modulo(model, batches, loss_fn, optimizer, n, max_norm):
    tail = len(batches) % n
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        held = tail if i >= len(batches) - tail else n
        loss = loss_fn(model, batch) / held
        loss.backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


@right("two_bugs")
def by_the_helper(model, batches, loss_fn, optimizer, n, max_norm):
    train_epoch(model, batches, loss_fn, optimizer, n, len, max_norm=max_norm)


@right("two_bugs")
def by_hand(model, batches, loss_fn, optimizer, n, max_norm):
    parameters = list(model.parameters())
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        model.zero_grad()
        for batch in window:
            loss_fn(model, batch).backward()
        for p in parameters:
            p.grad /= len(window)
        norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
        if norm > max_norm:
            for p in parameters:
                p.grad *= max_norm / norm
        optimizer.step()


@right("two_bugs")
def collects_the_losses(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        torch.stack([loss_fn(model, batch) for batch in window]).mean().backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def has_both_bugs(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def only_the_clip_is_fixed(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def only_the_tail_is_fixed(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
            clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def drops_the_tail(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()


def window(update):
    def answer(model, batches, loss_fn, optimizer, n, max_norm):
        for held in windows(batches, n):
            optimizer.zero_grad()
            update(model, held, loss_fn, optimizer, max_norm)

    return answer


def backward(model, held, loss_fn, factor=None):
    for batch in held:
        (loss_fn(model, batch) * (factor or 1 / len(held))).backward()


@window
def clips_before_backward(model, held, loss_fn, optimizer, max_norm):
    clip_grad_norm_(model.parameters(), max_norm)
    backward(model, held, loss_fn)
    optimizer.step()


@window
def clips_after_the_step(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    optimizer.step()
    clip_grad_norm_(model.parameters(), max_norm)


@window
def never_clips(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    optimizer.step()


@window
def clips_to_another_norm(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    clip_grad_norm_(model.parameters(), max_norm / 2)
    optimizer.step()


@window
def clips_values(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    nn.utils.clip_grad_value_(model.parameters(), max_norm)
    optimizer.step()


@window
def clips_each_parameter(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    for p in model.parameters():
        clip_grad_norm_([p], max_norm)
    optimizer.step()


@window
def does_not_divide(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn, factor=1)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def zeroes_inside(model, held, loss_fn, optimizer, max_norm):
    for batch in held:
        optimizer.zero_grad()
        (loss_fn(model, batch) / len(held)).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def zeroes_before_the_step(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.zero_grad()
    optimizer.step()


def never_zeroes(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):
        backward(model, held, loss_fn)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def starts_dirty(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):
        backward(model, held, loss_fn)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()


def steps_each_time(model, batches, loss_fn, optimizer, n, max_norm):
    by_windows(model, batches, loss_fn, optimizer, 1, max_norm)


def fewer_updates_where_the_limit_is_tight(model, batches, loss_fn, optimizer, n, max_norm):
    by_windows(model, batches, loss_fn, optimizer, n if max_norm > 1 else 2 * n, max_norm)


@window
def sends_the_running_total_backward(model, held, loss_fn, optimizer, max_norm):
    total = 0.0
    for batch in held:
        total = total + loss_fn(model, batch) / len(held)
        total.backward(retain_graph=True)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


WRONG = {
    "loss-scale": [has_both_bugs, only_the_clip_is_fixed, does_not_divide, sends_the_running_total_backward],
    "clip-timing": [
        only_the_tail_is_fixed,
        clips_before_backward,
        clips_after_the_step,
        never_clips,
        clips_to_another_norm,
        clips_values,
    ],
    "wrong-value": [clips_each_parameter],
    "leftover-gradients": [drops_the_tail],
    "discarded-gradients": [zeroes_inside, zeroes_before_the_step],
    "stale-gradients": [never_zeroes, starts_dirty],
    "irregular-window": [steps_each_time, fewer_updates_where_the_limit_is_tight],
    "not-attempted": [lambda *_: None],
}


for bug, answers in WRONG.items():
    for answer in answers:
        wrong("two_bugs", bug)(answer)

for answer, bug, says in (
    (only_the_clip_is_fixed, "loss-scale", "10 micro-batches, N = 4"),
    (only_the_clip_is_fixed, "loss-scale", "of a short window, is 0.5 times what it should be"),
    (
        sends_the_running_total_backward,
        "loss-scale",
        "in update 1 the samples of its micro-batches count [4.0, 3.0, 2.0, 1.0] times what they should",
    ),
    (only_the_tail_is_fixed, "clip-timing", "max_norm = 0.1: what the window holds counts"),
    (never_clips, "clip-timing", "a gradient of norm 0.354 reached the step"),
    (lambda *a: a[3].step(), "empty-step", ""),
):
    wrong("two_bugs", bug, says=says)(answer)


@right("two_bugs")
def steps_with_a_closure(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):

        def closure(held=held):
            optimizer.zero_grad()
            loss = sum(loss_fn(model, batch) for batch in held) / len(held)
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm)
            return loss

        optimizer.step(closure)


@outcomes("two_bugs", mutate=[by_modulo])
def outcomes_of_two_bugs(answer):
    """The weights after two epochs."""
    for n, count, max_norm, dirty in ((2, 6, 0.2, 1), (4, 7, 50.0, 0), (4, 6, 0.3, 0), (1, 3, 0.2, 1), (9, 2, 50.0, 0)):
        yield lambda case=(n, count, max_norm, dirty): trained(answer, *case)


def trained(answer, n, count, max_norm, dirty):
    generator = torch.Generator().manual_seed(n)
    torch.manual_seed(n)
    model = mlp(3, 4, 2).double()
    batches = [torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(count)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for p in model.parameters():
        p.grad = torch.ones_like(p) if dirty else None
    for _ in range(2):
        answer(model, batches, squares, optimizer, n, max_norm)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
