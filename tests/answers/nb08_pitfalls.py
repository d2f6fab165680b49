"""Answers to "two_bugs": a loop with a short window and a clip."""

import torch
from torch.nn.utils import clip_grad_norm_

from answers import right, wrong
from course_utils import train_epoch, windows


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
def divides_at_the_end(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    held = 0
    for place, batch in enumerate(batches, start=1):
        loss_fn(model, batch).backward()
        held += 1
        if held == n or place == len(batches):
            grads = [p.grad for p in model.parameters()]
            torch._foreach_div_(grads, held)
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            held = 0


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
def never_clips(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
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


@window
def sends_the_sum_backward_once(model, held, loss_fn, optimizer, max_norm):
    sum(loss_fn(model, batch) / len(held) for batch in held).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def sends_only_the_last_backward(model, held, loss_fn, optimizer, max_norm):
    for batch in held:
        loss = loss_fn(model, batch) / len(held)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


def clipped_by(clip):
    @window
    def answer(model, held, loss_fn, optimizer, max_norm):
        backward(model, held, loss_fn)
        clip(list(model.parameters()), max_norm)
        optimizer.step()

    return answer


def to_the_limit_always(params, max_norm):
    norm = torch.cat([p.grad.flatten() for p in params]).norm()
    for p in params:
        p.grad *= max_norm / norm


def only_the_first(params, max_norm):
    clip_grad_norm_(params[:1], max_norm)


def divided_by(count):
    def answer(model, batches, loss_fn, optimizer, n, max_norm):
        for held in windows(batches, n):
            optimizer.zero_grad()
            backward(model, held, loss_fn, 1 / count(batches, n, held))
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()

    return answer


def stepping_if(is_last, reset=True):
    """Divides by what is really held; `is_last(i, held, n, batches)` decides when to step, and `held` starts over."""

    def answer(model, batches, loss_fn, optimizer, n, max_norm):
        optimizer.zero_grad()
        held = 0
        for i, batch in enumerate(batches):
            loss_fn(model, batch).backward()
            held += 1
            if is_last(i, held, n, batches):
                for p in model.parameters():
                    p.grad /= held
                clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
                held = 0 if reset else held

    return answer


def takes_the_batches_out(model, batches, loss_fn, optimizer, n, max_norm):
    while batches:
        held = [batches.pop(0) for _ in range(min(n, len(batches)))]
        optimizer.zero_grad()
        backward(model, held, loss_fn)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def clears_the_batches(model, batches, loss_fn, optimizer, n, max_norm):
    by_windows(model, batches, loss_fn, optimizer, n, max_norm)
    batches.clear()


@window
def divides_the_first_parameter_only(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn, 1.0)
    next(model.parameters()).grad.div_(len(held))
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def frozen(model, held, loss_fn, optimizer, max_norm):
    with torch.no_grad():
        sum(loss_fn(model, batch) for batch in held)
    optimizer.step()


WRONG = {
    "held-graphs": [
        sends_the_sum_backward_once,
    ],
    "not-reset": [stepping_if(lambda i, held, n, batches: held == n, reset=False)],
    "wrong-value": [divides_the_first_parameter_only],
    "missing-backward": [sends_only_the_last_backward],
    "changed-input": [takes_the_batches_out, clears_the_batches],
    "low-precision": [
        divided_by(lambda batches, n, held: 1 / round(1 / len(held), 2)),
        divided_by(lambda batches, n, held: 1 / round(1 / len(held), 4)),
    ],
    "raises": [lambda model, *_: model.no_such_thing()],
    "clip-limit": [
        clipped_by(only_the_first),
        clipped_by(to_the_limit_always),
    ],
    "leftover-gradients": [
        drops_the_tail,
        stepping_if(lambda i, held, n, batches: held == n),
    ],
    "discarded-gradients": [zeroes_inside, zeroes_before_the_step],
    "stale-gradients": [never_zeroes, starts_dirty],
    "empty-step": [frozen],
    "irregular-window": [
        steps_each_time,
        fewer_updates_where_the_limit_is_tight,
    ],
    "not-attempted": [lambda *_: None],
}


for bug, answers in WRONG.items():
    for answer in answers:
        wrong("two_bugs", bug)(answer)

for answer, bug, says in (
    (only_the_clip_is_fixed, "loss-scale", "11 micro-batches, N = 4"),
    (only_the_clip_is_fixed, "loss-scale", "of a short window, is 0.75 times what it should be"),
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


@wrong("two_bugs", "held-graphs", says="bytes are kept for the backward pass at once")
def steps_with_a_closure_that_holds_the_window(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):

        def closure(held=held):
            optimizer.zero_grad()
            loss = sum(loss_fn(model, batch) for batch in held) / len(held)
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm)
            return loss

        optimizer.step(closure)
