"""Answers to "weighted_window": one update of a window, with class weights and one clip."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from answers import right, wrong
from course_utils import mlp, train_epoch


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


def zeroes_before_the_step(model, window, class_weights, optimizer, max_norm):
    for x, y in window:
        F.cross_entropy(model(x), y, weight=class_weights).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def clips_each_by_itself(model, window, class_weights, optimizer, max_norm):
    total, sums = sum(class_weights[y].sum() for _, y in window), [0.0 for _ in model.parameters()]
    for x, y in window:
        model.zero_grad()
        (F.cross_entropy(model(x), y, weight=class_weights) * class_weights[y].sum() / total).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        sums = [s + p.grad for s, p in zip(sums, model.parameters(), strict=True)]
    for p, s in zip(model.parameters(), sums, strict=True):
        p.grad = s
    optimizer.step()
    optimizer.zero_grad()


def items(window):
    return sum(len(y) for _, y in window)


WRONG = {
    "token-weights": [
        variant(share=lambda window, weights, y: len(y) / items(window)),
        variant(share=lambda window, weights, y: 1 / len(window)),
        variant(share=lambda window, weights, y: 1.0),
    ],
    "loss-scale": [
        variant(share=lambda window, weights, y: weights[y].sum()),
        variant(share=lambda window, weights, y: weights[y].sum() / items(window)),
        variant(
            share=lambda window, weights, y: weights[y].sum() / sum(weights[t].sum() for _, t in window) / len(window)
        ),
    ],
    "clip-timing": [
        variant(clip="each"),
        variant(clip="before"),
        variant(clip="never"),
        variant(clip="after the step"),
        clips_each_by_itself,
    ],
    "stale-gradients": [variant(zero_before=False), variant(zero_before=False, zero_after=False)],
    "discarded-gradients": [variant(zero_in_loop=True), variant(zero_in_loop="after"), zeroes_before_the_step],
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
        lambda model, window, *_: window[99],
        lambda model, window, *_: model(window[0][1]),
        lambda model, *_: exit(),
    ],
    "not-a-function": [None, 3, "weighted_window"],
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


@right("weighted_window")
def with_a_running_mean_in_reverse(model, window, class_weights, optimizer, max_norm):
    if not window:
        return
    for p in model.parameters():
        p.grad = None
    seen = 0.0
    for i in range(len(window) - 1, -1, -1):
        x, y = window[i]
        own = float(class_weights.gather(0, y).sum())
        if seen:
            with torch.no_grad():
                for p in model.parameters():
                    p.grad *= seen / (seen + own)
        seen += own
        F.nll_loss(model(x).log_softmax(1), y, class_weights).backward(torch.tensor(own / seen, dtype=torch.float64))
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_norm, foreach=False)
    optimizer.step()


@right("weighted_window")
def with_one_hot_targets(model, window, class_weights, optimizer, max_norm) -> None:
    def weight_of(batch: tuple) -> torch.Tensor:
        return F.one_hot(batch[1], len(class_weights)).double() @ class_weights

    total = sum(map(torch.sum, map(weight_of, window)))
    optimizer.zero_grad()
    for batch in iter(window):
        each = -(model(batch[0]).log_softmax(-1) * F.one_hot(batch[1], len(class_weights))).sum(-1)
        loss = (each * weight_of(batch)).sum() / total
        loss.backward()
    nn.utils.clip_grad_norm_(list(model.parameters()), max_norm, error_if_nonfinite=True)
    optimizer.step()
    optimizer.zero_grad()


@right("weighted_window")
def computes_in_float32(model, window, class_weights, optimizer, max_norm):
    short = mlp(3, 5, 4).float()
    short.load_state_dict(model.state_dict())
    total = sum(class_weights[y].sum() for _, y in window)
    for x, y in window:
        (F.cross_entropy(short(x.float()), y, weight=class_weights.float(), reduction="sum") / total).backward()
    for p, q in zip(model.parameters(), short.parameters(), strict=True):
        p.grad = q.grad.double()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@right("weighted_window")
def with_normalised_class_weights(model, window, class_weights, optimizer, max_norm):
    weights = class_weights / class_weights.sum()
    inputs, labels = zip(*window, strict=True)
    shares = {i: float(weights[y].sum()) for i, y in enumerate(labels)}
    optimizer.zero_grad()
    for i, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        loss = nn.CrossEntropyLoss(weight=weights)(model(x), y)
        loss.mul(shares[i]).div(sum(shares.values())).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


# Right answers but for how they clip, which micro-batches they take, and what they keep.


def clipping(clip):
    """The correct loop with another clip: `clip(list of parameters, max_norm)`."""

    def answer(model, window, class_weights, optimizer, max_norm):
        variant(clip="never", step="never", zero_after=False)(model, window, class_weights, optimizer, max_norm)
        clip(list(model.parameters()), max_norm)
        optimizer.step()

    return answer


def scale_to(parameters, norm):
    total = torch.cat([p.grad.flatten() for p in parameters]).norm()
    for p in parameters:
        p.grad *= norm / total


MORE = {
    "clip-limit": [
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters, 1.0)),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters, 5.0)),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters, max_norm**2)),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters, max_norm / 4)),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=1)),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_value_(parameters, max_norm)),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_value_(parameters, 0.5)),
        clipping(lambda parameters, max_norm: [nn.utils.clip_grad_norm_(p, max_norm) for p in parameters]),
        clipping(lambda parameters, max_norm: nn.utils.clip_grad_norm_(parameters[2:], max_norm)),
        clipping(
            lambda parameters, max_norm: nn.utils.clip_grad_norm_([p for p in parameters if p.dim() > 1], max_norm)
        ),
        clipping(scale_to),
        clipping(lambda parameters, max_norm: scale_to(parameters, 1.0)),
    ],
    "missing-backward": [
        lambda model, window, *rest: correct(model, window[-1:], *rest),
        lambda model, window, *rest: correct(model, window[:-1] or window, *rest),
        lambda model, window, *rest: correct(model, window[::2], *rest),
    ],
    "low-precision": [
        variant(share=lambda window, w, y: round(float(w[y].sum() / sum(w[t].sum() for _, t in window)), 2)),
        variant(share=lambda window, w, y: round(float(w[y].sum() / sum(w[t].sum() for _, t in window)), 3)),
        variant(share=lambda window, w, y: (w[y].sum() / sum(w[t].sum() for _, t in window)).half()),
    ],
    "token-weights": [
        variant(share=lambda window, w, y: w[y].mean() / sum(w[t].mean() for _, t in window)),
        variant(share=lambda window, w, y: w[y.unique()].sum() / sum(w[t.unique()].sum() for _, t in window)),
    ],
    "loss-scale": [
        variant(share=lambda window, w, y: w[y].sum() / w.sum()),
        variant(share=lambda window, w, y: 2 * w[y].sum() / sum(w[t].sum() for _, t in window)),
        variant(share=lambda window, w, y: w[y].sum() * len(window) / sum(w[t].sum() for _, t in window)),
    ],
    "missing-class-weights": [
        variant(weighted=False),
        variant(weighted=False, share=lambda window, w, y: 1 / len(window)),
    ],
    "changed-input": [
        lambda model, window, *rest: (correct(model, window, *rest), window.clear())[1],
        lambda model, window, weights, *rest: correct(model, window, weights.div_(weights.sum()), *rest),
        lambda model, window, *rest: correct(model, [window.pop() for _ in range(len(window))], *rest),
    ],
    "irregular-window": [lambda *a: correct(*a) or correct(*a)],
    "discarded-gradients": [
        variant(share=lambda window, w, y: w[y].sum() // (1 + sum(w[t].sum() for _, t in window))),
    ],
}
for bug, answers in MORE.items():
    for answer in answers:
        wrong("weighted_window", bug)(answer)


def correct(*update):
    variant()(*update)


@wrong("weighted_window", "missing-backward")
def has_its_backward_outside_the_loop(model, window, class_weights, optimizer, max_norm):
    optimizer.zero_grad()
    total = sum(class_weights[y].sum() for _, y in window)
    for x, y in window:
        loss = F.cross_entropy(model(x), y, weight=class_weights, reduction="sum") / total
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@wrong("weighted_window", "held-graphs")
def retains_every_graph(model, window, class_weights, optimizer, max_norm):
    optimizer.zero_grad()
    total = sum(class_weights[y].sum() for _, y in window)
    for x, y in window:
        loss = F.cross_entropy(model(x), y, weight=class_weights, reduction="sum") / total
        loss.backward(retain_graph=True)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@wrong("weighted_window", "held-graphs")
def runs_all_forward_passes_first(model, window, class_weights, optimizer, max_norm):
    optimizer.zero_grad()
    total = sum(class_weights[y].sum() for _, y in window)
    for loss in [F.cross_entropy(model(x), y, weight=class_weights, reduction="sum") for x, y in window]:
        (loss / total).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@wrong("weighted_window", "held-graphs")
def makes_one_large_batch(model, window, class_weights, optimizer, max_norm):
    x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
    correct(model, [(x, y)], class_weights, optimizer, max_norm)


@wrong("weighted_window", "clip-timing")
def clips_before_it_divides(model, window, class_weights, optimizer, max_norm):
    optimizer.zero_grad()
    for x, y in window:
        F.cross_entropy(model(x), y, weight=class_weights, reduction="sum").backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for p in model.parameters():
        p.grad /= sum(class_weights[y].sum() for _, y in window)
    optimizer.step()


@wrong("weighted_window", "leftover-gradients")
def swallows_the_error_before_its_step(model, window, class_weights, optimizer, max_norm):
    try:
        variant(step="never")(model, window, class_weights, optimizer, max_norm)
        nn.utils.clip_grad_norm(model, max_norm)
        optimizer.step()
    except Exception:
        pass
