"""Answers to "weighted_window": one update of a window, with class weights and one clip."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from answers import right, wrong
from course_utils import train_epoch


@right("weighted_window")
def with_sums_and_one_division(model, window, class_weights, optimizer, max_norm):
    model.zero_grad()
    for x, y in window:
        F.cross_entropy(model(x), y, weight=class_weights, reduction="sum").backward()
    total = float(sum(class_weights[y].sum() for _, y in window))
    for p in model.parameters():
        p.grad /= total
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@right("weighted_window")
def with_the_helper(model, window, class_weights, optimizer, max_norm):
    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], weight=class_weights)

    train_epoch(model, window, loss_fn, optimizer, len(window), lambda b: class_weights[b[1]].sum(), max_norm=max_norm)


@right("weighted_window")
def by_hand_without_backward(model, window, class_weights, optimizer, max_norm):
    parameters, sums, total = list(model.parameters()), None, 0.0
    for x, y in window:
        each = F.cross_entropy(model(x), y, reduction="none") * class_weights[y]
        grads = torch.autograd.grad(each.sum(), parameters)
        sums = grads if sums is None else [s + g for s, g in zip(sums, grads, strict=True)]
        total += class_weights[y].sum()
    norm = math.sqrt(sum(float((s / total).square().sum()) for s in sums))
    for p, s in zip(parameters, sums, strict=True):
        p.grad = s / total * min(1.0, max_norm / norm)
    optimizer.step()


def variant(
    share=None,
    clip="once",
    zero_before=True,
    zero_after=True,
    zero_in_loop=False,
    weighted=True,
    step="once",
    at_once=False,
):
    """The correct loop with one thing done another way."""

    def answer(model, window, class_weights, optimizer, max_norm):
        if zero_before:
            optimizer.zero_grad()
        total, loss_of_all = sum(class_weights[y].sum() for _, y in window), 0.0
        for x, y in window:
            if zero_in_loop:
                optimizer.zero_grad()
            if clip == "before" and any(p.grad is not None for p in model.parameters()):
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            loss = F.cross_entropy(model(x), y, weight=class_weights if weighted else None)
            part = class_weights[y].sum() / total if share is None else share(window, class_weights, y)
            loss_of_all = loss_of_all + loss * part
            if not at_once:
                (loss * part).backward()
            if clip == "each":
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if step == "each":
                optimizer.step()
        if at_once:
            loss_of_all.backward()
        if zero_in_loop == "after":
            optimizer.zero_grad()
        if clip in ("once", "each"):
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if step == "once":
            optimizer.step()
        if clip == "after the step":
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if zero_after:
            optimizer.zero_grad()

    return answer


def items(window):
    return sum(len(y) for _, y in window)


WRONG = {
    "token-weights": [
        variant(share=lambda window, weights, y: len(y) / items(window)),
    ],
    "loss-scale": [
        variant(share=lambda window, weights, y: weights[y].sum()),
        variant(share=lambda window, weights, y: weights[y].sum() / items(window)),
    ],
    "clip-timing": [
        variant(clip="each"),
        variant(clip="before"),
    ],
    "stale-gradients": [variant(zero_before=False), variant(zero_before=False, zero_after=False)],
    "discarded-gradients": [variant(zero_in_loop=True), variant(zero_in_loop="after")],
    "irregular-window": [variant(step="each")],
    "leftover-gradients": [variant(step="never")],
    "held-graphs": [variant(at_once=True)],
    "missing-class-weights": [variant(weighted=False, share=lambda window, weights, y: len(y) / items(window))],
    "empty-step": [lambda model, window, class_weights, optimizer, max_norm: optimizer.step()],
    "not-attempted": [
        lambda *_: None,
        lambda model, window, *_: [model(x) for x, _ in window],
    ],
    "raises": [
        lambda: None,
        lambda *_: 1 / 0,
    ],
    "not-a-function": [None, 3],
    "wrong-value": [
        lambda model, window, weights, optimizer, _: (
            [p.data.fill_(math.nan) for p in model.parameters()] and fit(model, window, optimizer)
        ),
        lambda model, window, weights, optimizer, _: model(window[0][0]).sum().backward() or optimizer.step(),
    ],
}


def fit(model, window, optimizer):
    F.cross_entropy(model(window[0][0]), window[0][1]).backward()
    optimizer.step()


for bug, answers in WRONG.items():
    for answer in answers:
        wrong("weighted_window", bug)(answer)

wrong(
    "weighted_window",
    "token-weights",
    says="micro-batches of [4, 4, 4, 4] samples, no clip that acts: the micro-batches count by their samples, "
    "[0.25, 0.25, 0.25, 0.25], and should count by what",
)(variant(share=lambda window, weights, y: len(y) / items(window)))


@right("weighted_window")
def steps_with_a_closure(model, window, class_weights, optimizer, max_norm):
    total = sum(class_weights[y].sum() for _, y in window)

    def closure():
        optimizer.zero_grad()
        losses = []
        for x, y in window:
            losses.append(F.cross_entropy(model(x), y, weight=class_weights, reduction="sum") / total)
            losses[-1].backward()
            losses[-1] = losses[-1].detach()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return sum(losses)

    optimizer.step(closure)


@right("weighted_window")
def with_a_float32_total_and_a_clip_by_hand(model, window, class_weights, optimizer, max_norm):
    optimizer.zero_grad(set_to_none=False)
    counts = torch.tensor([class_weights[y].sum().item() for _, y in window], dtype=torch.float32)
    for (x, y), share in zip(window, counts / counts.sum(), strict=True):
        (share * F.cross_entropy(model(x), y, weight=class_weights)).backward()
    norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))
    if norm > max_norm:
        for p in model.parameters():
            p.grad.mul_(max_norm / norm)
    optimizer.step()


# Right answers but for how they clip, which micro-batches they take, and what they keep.


def clipping(clip):
    """The correct loop with another clip: `clip(list of parameters, max_norm)`."""

    def answer(model, window, class_weights, optimizer, max_norm):
        variant(clip="never", step="never", zero_after=False)(model, window, class_weights, optimizer, max_norm)
        clip(list(model.parameters()), max_norm)
        optimizer.step()

    return answer


MORE = {
    "clip-limit": [
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters, 1.0)),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters, 5.0)),
    ],
    "missing-backward": [
        lambda model, window, *rest: correct(model, window[-1:], *rest),
        lambda model, window, *rest: correct(model, window[:-1] or window, *rest),
    ],
    "low-precision": [
        variant(share=lambda window, w, y: round(float(w[y].sum() / sum(w[t].sum() for _, t in window)), 2)),
        variant(share=lambda window, w, y: round(float(w[y].sum() / sum(w[t].sum() for _, t in window)), 3)),
    ],
    "missing-class-weights": [
        variant(weighted=False),
    ],
    "changed-input": [
        lambda model, window, *rest: (correct(model, window, *rest), window.clear())[1],
        lambda model, window, weights, *rest: correct(model, window, weights.div_(weights.sum()), *rest),
    ],
    "irregular-window": [lambda *a: correct(*a) or correct(*a)],
}
for bug, answers in MORE.items():
    for answer in answers:
        wrong("weighted_window", bug)(answer)


def correct(*update):
    variant()(*update)


@wrong("weighted_window", "held-graphs")
def retains_every_graph(model, window, class_weights, optimizer, max_norm):
    optimizer.zero_grad()
    total = sum(class_weights[y].sum() for _, y in window)
    for x, y in window:
        loss = F.cross_entropy(model(x), y, weight=class_weights, reduction="sum") / total
        loss.backward(retain_graph=True)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@wrong("weighted_window", "leftover-gradients")
def swallows_the_error_before_its_step(model, window, class_weights, optimizer, max_norm):
    try:
        variant(step="never")(model, window, class_weights, optimizer, max_norm)
        nn.utils.clip_grad_norm(model, max_norm)
        optimizer.step()
    except Exception:
        pass
