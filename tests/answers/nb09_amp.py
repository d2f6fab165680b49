"""Answers to "amp_window": one window under a GradScaler."""

import math

import torch
from torch import nn

from answers import right, wrong


@right("amp_window")
def by_the_norm(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Zeroes first, looks at the norm alone, and calls update before the schedule."""
    optimizer.zero_grad()
    items = [len(batch) for batch in window]
    for batch, count in zip(window, items, strict=True):
        scaler.scale(loss_fn(model, batch) * count / sum(items)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    made = bool(torch.isfinite(norm)) and norm.item() <= skip_norm
    if made:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    return made


@right("amp_window")
def by_hand(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Clips by hand, counts the steps with a hook, returns a number."""
    steps = []
    handle = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    model.zero_grad(set_to_none=False)
    total = sum(map(len, window))
    for batch in window:
        (scaler.scale(loss_fn(model, batch)) * len(batch) / total).backward()
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters()]
    norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients))
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    if math.isfinite(norm) and not norm > skip_norm:
        scaler.step(optimizer)
    scaler.update()
    for _ in steps:
        scheduler.step()
    handle.remove()
    return len(steps)


@right("amp_window")
def leaves_spikes_scaled(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Divides the norm and not the gradient, so that the scaler never hears of a spike."""
    for p in model.parameters():
        p.grad = None
    total = sum(len(batch) for batch in window)
    for batch in window:
        scaler.scale(loss_fn(model, batch)).mul(len(batch) / total).backward()
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]) / scaler.get_scale()
    if norm > skip_norm if torch.isfinite(norm) else not scaler.is_enabled():
        return False
    before = scaler.get_scale()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm * before)  # the limit, scaled
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < before:
        return False
    scheduler.step()
    return True


@right("amp_window")
def looks_at_every_gradient(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Collects the gradients by torch.autograd.grad and puts them into .grad itself."""
    parameters, total = [*model.parameters()], sum(map(len, window))
    sums = [torch.zeros_like(p) for p in parameters]
    for batch in window:
        scaled = scaler.scale(loss_fn(model, batch) * len(batch) / total)
        for kept, gradient in zip(sums, torch.autograd.grad(scaled, parameters), strict=True):
            kept += gradient
    for p, kept in zip(parameters, sums, strict=True):
        p.grad = kept
    scaler.unscale_(optimizer)
    finite = all(p.grad.isfinite().all() for p in parameters)
    spike = finite and nn.utils.clip_grad_norm_(parameters, max_norm) > skip_norm
    if finite and not spike:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    return int(finite and not spike)


# Wrong answers: a right one with one thing wrong.


def window(
    scale=True,
    unscale="after",  # "each", "each and update", "never", "second"
    clip="after",  # "before", "each", "never"
    weighted="items",
    zero="end",
    schedule="made",
    skip="norm",
    update="always",
    step="scaler",
    order="scheduler last",
    says="made",
):
    def answer(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
        parameters = list(model.parameters())
        total = sum(len(batch) for batch in window)
        for place, batch in enumerate(window):
            share = {"items": len(batch) / total, "equal": 1 / len(window), "N": 1 / 4, "none": 1.0}[weighted]
            loss = loss_fn(model, batch) * share
            (scaler.scale(loss) if scale else loss).backward()
            if unscale == "each" or (unscale == "second" and place == 1):
                scaler.unscale_(optimizer)
            if unscale == "each and update":
                scaler.unscale_(optimizer)
                scaler.update()
            if clip == "each":
                nn.utils.clip_grad_norm_(parameters, max_norm)
            if zero == "each":
                optimizer.zero_grad()
            if schedule == "each":
                scheduler.step()
        if clip == "before":
            nn.utils.clip_grad_norm_(parameters, max_norm)
        if unscale == "after":
            scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if clip == "after":
            nn.utils.clip_grad_norm_(parameters, max_norm)
        if skip == "clipped":
            norm = nn.utils.get_total_norm([p.grad for p in parameters])
        if skip == "scaled":
            norm = norm * scaler.get_scale()
        spike = skip != "never" and bool(norm > skip_norm)
        if zero == "before the step":
            optimizer.zero_grad()
        if order == "scheduler first":
            scheduler.step()
        if not spike:
            scaler.step(optimizer) if step == "scaler" else optimizer.step()
        before = scaler.get_scale()
        if update == "always" or (update == "with the step" and not spike):
            scaler.update()
        after = scaler.get_scale()
        made = not spike and {"made": after >= before, "same scale": after == before}.get(schedule, after >= before)
        if (schedule == "always" or (schedule in ("made", "same scale") and made)) and order == "scheduler last":
            scheduler.step()
        if zero == "end" or (zero == "if made" and made):
            optimizer.zero_grad()
        return {"made": made, "nothing": None, "true": True}[says]

    return answer


def steps_each_micro_batch(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    for batch in window:
        made = by_the_norm(model, [batch], loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm)
    return made


def steps_on_zeros(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """A skipped window is made harmless by zeros instead of leaving the step out."""
    total = sum(len(batch) for batch in window)
    for batch in window:
        (scaler.scale(loss_fn(model, batch)) * (len(batch) / total)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    made = bool(torch.isfinite(norm) and norm <= skip_norm)
    if not made:
        optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    scaler.update()
    if made:
        scheduler.step()
    optimizer.zero_grad()
    return made


def one_backward_for_all(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    total = sum(len(batch) for batch in window)
    loss = sum(loss_fn(model, batch) * (len(batch) / total) for batch in window)
    whole = [torch.zeros(total)]
    return by_the_norm(model, whole, lambda *_: loss, optimizer, scaler, scheduler, max_norm, skip_norm)


def asks_only_for_nan(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Stops a NaN, and leaves infinities to a scaler that may be switched off."""
    optimizer.zero_grad()
    total = sum(len(batch) for batch in window)
    for batch in window:
        scaler.scale(loss_fn(model, batch) * (len(batch) / total)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scale, left_out = scaler.get_scale(), bool(norm.isnan() or norm > skip_norm)
    if not left_out:
        scaler.step(optimizer)
    scaler.update()
    if left_out or scaler.get_scale() < scale:
        return False
    scheduler.step()
    return True


def stub(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    for _ in window:
        ...


WRONG = {
    "not-attempted": [
        stub,
        lambda *_: None,
    ],
    "clip-timing": [
        window(clip="before"),  # Lightning-AI/pytorch-lightning#9330, pytorch/examples#1196
        # catalyst-team/catalyst#1319
    ],
    "loss-scale": [window(weighted="none")],
    "token-weights": [window(weighted="equal")],
    "stale-gradients": [window(zero="never")],
    "discarded-gradients": [window(zero="before the step"), window(zero="each")],
    "skip-rule": [window(skip="never"), window(skip="clipped")],
    "irregular-window": [steps_each_micro_batch],
    "unguarded-step": [
        window(),  # epfLLM/Megatron-LLM!34: without a scaler that is switched on, nobody looks for a NaN
        asks_only_for_nan,
    ],
    "empty-step": [steps_on_zeros],
    "held-graphs": [one_backward_for_all],
    "wrong-value": [window(says="nothing"), window(says="true")],
    "raises": [lambda: None, lambda *_: 1 / 0],
    "not-a-function": [None, 3],
}


for bug, answers in WRONG.items():
    for answer in answers:
        wrong("amp_window", bug)(answer)

for answer, bug, says in (
    (window(clip="before"), "clip-timing", ""),
    (window(weighted="none"), "loss-scale", ""),
    (window(unscale="second", clip="never"), "scaler-timing", "count [1.0, 1.0, 1020.0, 1020.0] times"),
    (
        window(schedule="same scale"),
        "scheduler-cadence",
        "",
    ),
    (window(zero="if made"), "stale-gradients", ""),
):
    wrong("amp_window", bug, says=says)(answer)

for bug, answer in (("leftover-gradients", lambda model, window, loss_fn, *_: loss_fn(model, window[0]).backward()),):
    wrong("amp_window", bug)(answer)


# More styles of right answers.


@right("amp_window")
def divides_the_gradient(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    """Sums first, divides the unscaled gradient once, under an autocast that leaves float64 alone."""
    items = 0
    for batch in window:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(model, batch) * len(batch)
        scaler.scale(loss).backward()
        items += len(batch)
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad /= items
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    is_finite, is_spike = math.isfinite(norm), float(norm) > skip_norm
    if is_finite and not is_spike:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    optimizer.zero_grad(set_to_none=False)
    return is_finite and not is_spike


@right("amp_window")
def with_an_early_return(
    model: nn.Module, window: list, loss_fn, optimizer, scaler, scheduler, max_norm: float, skip_norm: float
) -> bool:
    if not window:
        return False
    optimizer.zero_grad()
    sizes = torch.tensor([len(batch) for batch in window], dtype=torch.float32)
    for batch, share in zip(window, sizes / sizes.sum(), strict=True):  # shares in float32
        scaler.scale(loss_fn(model, batch) * share).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not (torch.isfinite(norm) and norm <= skip_norm):
        scaler.update()
        return False
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return True


# More wrong answers.


def changed(
    losses=lambda losses: losses,
    share=lambda batch, window: len(batch) / sum(map(len, window)),
    chosen=lambda window: window,
    clip=nn.utils.clip_grad_norm_,
    limit=lambda max_norm: max_norm,
    is_spike=lambda norm, max_norm, skip_norm: bool(norm > skip_norm),
    before_step=lambda scaler, optimizer: None,
    step=lambda scaler, optimizer: scaler.step(optimizer),
    after_step=lambda scaler, optimizer: None,
    update=lambda scaler, spike: scaler.update(),
    tells=lambda made, scaler, before: made,
    steps_of_the_schedule=1,
    cast=lambda loss: loss,
    finish=lambda window: None,
):
    """The solution, with one part exchanged."""

    def answer(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
        for batch in chosen(window):
            scaler.scale(cast(loss_fn(model, batch)) * share(batch, window)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        clip(list(model.parameters()), limit(max_norm))
        spike = is_spike(norm, max_norm, skip_norm) or not norm.isfinite()
        before_step(scaler, optimizer)
        if not spike:
            step(scaler, optimizer)
        after_step(scaler, optimizer)
        before = scaler.get_scale()
        update(scaler, spike)
        made = not spike and scaler.get_scale() >= before
        for _ in range(steps_of_the_schedule * made):
            scheduler.step()
        optimizer.zero_grad()
        finish(window)
        return tells(made, scaler, before)

    return answer


def drained(window):
    """Yields the micro-batches and takes them out of the list."""
    while window:
        yield window.pop(0)


def keeps_all_losses(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    total = sum(map(len, window))
    losses = [scaler.scale(loss_fn(model, batch) * len(batch) / total) for batch in window]
    for loss in losses:
        loss.backward()
    return finishes(model, optimizer, scaler, scheduler, max_norm, skip_norm)


def finishes(model, optimizer, scaler, scheduler, max_norm, skip_norm):
    scaler.unscale_(optimizer)
    return finishes_unscaled(model, optimizer, scaler, scheduler, max_norm, skip_norm)


def finishes_unscaled(model, optimizer, scaler, scheduler, max_norm, skip_norm):
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    made = bool(norm.isfinite()) and bool(norm <= skip_norm)
    if made:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    optimizer.zero_grad()
    return made


def clips_to_one(parameters, max_norm):
    nn.utils.clip_grad_norm_(parameters, 1.0)


for bug, answers in {
    "clip-limit": [
        changed(clip=clips_to_one),
    ],
    "irregular-window": [changed(after_step=lambda scaler, optimizer: optimizer.step())],
    "token-weights": [changed(share=lambda batch, window: len(batch) ** 2 / sum(len(b) ** 2 for b in window))],
    "missing-backward": [changed(chosen=lambda window: window[:-1] or window)],
    "held-graphs": [
        keeps_all_losses,
    ],
    "low-precision": [
        changed(cast=lambda loss: loss.bfloat16()),
        changed(cast=lambda loss: loss.half()),
    ],
    "changed-input": [
        changed(finish=lambda window: window.clear()),
        changed(chosen=drained, share=lambda batch, window: 0.25),
    ],
}.items():
    for answer in answers:
        wrong("amp_window", bug)(answer)
