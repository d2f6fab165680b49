"""Answers to "four_lines" (08: "three_lines") and to "amp_window", the loop under autocast and a GradScaler."""

import math
from itertools import islice

import torch

from answers import edited, right, wrong

SHARE = "(weight(batch) / total)"
BACKWARD = "            loss.backward()\n"
CLIP = "        clip_grad_norm_(model.parameters(), max_norm)\n"
STEP = "        optimizer.step()\n"
TICK = "        scheduler.step()\n"
MEAN_LOSS = "loss_fn(model, batch)"


@right("four_lines", "three_lines")
def by_an_iterator(model, batches, loss_fn, optimizer, n, weight, max_norm, scheduler):
    """Divides the gradient and not the losses, clips by hand, logs tensors without a graph."""
    batches, losses = iter(batches), []
    while window := list(islice(batches, n)):
        model.zero_grad()
        means = [loss_fn(model, batch) for batch in window[:1]]
        sums = [means[0] * weight(window[0])]
        sums[0].backward()
        for batch in window[1:]:
            sums.append(loss_fn(model, batch) * weight(batch))
            sums[-1].backward()
        samples = sum(map(weight, window))
        for p in model.parameters():
            p.grad /= samples
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad *= (max_norm / norm).clamp(max=1.0)
        optimizer.step()
        scheduler.step()
        losses.append(sum(each.detach() for each in sums) / samples)
    return losses


@right("four_lines", "three_lines")
def by_a_counter(model, batches, loss_fn, optimizer, n, weight, max_norm, scheduler):
    """Steps where a window is full, or the epoch ends; a generator of losses."""
    batches = list(batches)
    optimizer.zero_grad()
    shares = []
    for number, batch in enumerate(batches, start=1):
        start = (number - 1) // n * n
        share = weight(batch) / sum(map(weight, batches[start : start + n]))
        loss = loss_fn(model, batch)
        (loss * share).backward()
        shares.append(loss.item() * share)
        if number % n == 0 or number == len(batches):
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            scheduler.step()
            yield sum(shares)
            shares.clear()


for bug, *changes in (
    ("loss-scale", (f" * {SHARE}", "")),
    ("token-weights", (f"{MEAN_LOSS} * {SHARE}", f"{MEAN_LOSS} / len(window)")),
    ("token-weights", (SHARE, "(weight(window[0]) / total)")),
    ("token-weights", (SHARE, "(len(batch) / sum(map(len, window)))")),
    ("clip-timing", (CLIP, "")),
    ("clip-timing", (CLIP + STEP, STEP + CLIP)),
    ("scheduler-cadence", (TICK, "")),
    ("scheduler-cadence", (TICK, ""), (BACKWARD, f"{BACKWARD}    {TICK}")),
    ("scheduler-cadence", (STEP + TICK, TICK + STEP)),
    ("wrong-loss", ("window_loss += loss.item()", f"window_loss += {MEAN_LOSS}.item() / len(window)")),
    ("held-graphs", ("window_loss += loss.item()", "window_loss = window_loss + loss")),
    ("not-attempted", ("    return losses", "    pass")),
    ("irregular-window", ("windows(batches, n)", "windows(batches, 1)")),
    ("changed-input", ("    return losses", "    batches.clear()\n    return losses")),
):
    for exercise in ("four_lines", "three_lines"):  # their solutions have the same lines
        wrong(exercise, bug)(edited(exercise, *changes))
early = edited("four_lines", (CLIP, ""), (BACKWARD, f"{BACKWARD}    {CLIP}"))
wrong("four_lines", "clip-timing", "[0.065, 0.253, 0.735, 2.28] times what they should, unequally: a limit")(early)
last = edited("four_lines", ("window_loss += loss.item()", "window_loss = loss.item()"))
wrong("four_lines", "wrong-loss", "got the last micro-batch's share. Tried on batches of [2, 2, 2, 2, 2, 2] samples")(
    last
)


SCALED = "            scaler.scale(loss).backward()\n"
UNSCALE = "        scaler.unscale_(optimizer)  # once, after the last backward pass\n"
NORM = "norm = clip_grad_norm_(model.parameters(), max_norm)"
GUARD = "norm.isfinite()"
MADE = "            scheduler.step()  # and whatever else counts updates\n"
UPDATE = "        scaler.update()  # also after a skipped window\n"
OPENED = "    losses = []\n", "    losses = []\n    autocast.__enter__()\n"
ZERO = "        optimizer.zero_grad()  # this, too\n"
FORWARD = "            with autocast:  # the forward pass only\n    "
BY_THE_SCALE = (
    f"        scale = scaler.get_scale()\n{UPDATE}        if scale {{}} scaler.get_scale(): scheduler.step()\n"
)


@right("amp_window")
def by_hand(model, batches, loss_fn, optimizer, n, weight, max_norm, scheduler, autocast, scaler):
    """Clips by hand, counts the steps with a hook, zeroes before the window."""
    batches, losses, steps = list(batches), [], []
    handle = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    mean = autocast(loss_fn)
    for window in (batches[start : start + n] for start in range(0, len(batches), n)):
        model.zero_grad(set_to_none=False)
        total, shares = sum(map(weight, window)), []
        for batch in window:
            shares.append(mean(model, batch) * weight(batch) / total)
            scaler.scale(shares[-1]).backward()
        scaler.unscale_(optimizer)
        gradients = [p.grad for p in model.parameters()]
        norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients))
        if norm > max_norm:
            for gradient in gradients:
                gradient.mul_(max_norm / norm)
        if math.isfinite(norm):
            scaler.step(optimizer)
        scaler.update()
        for _ in steps:
            scheduler.step()
        steps.clear()
        losses.append(sum(share.item() for share in shares))
    handle.remove()
    return losses


@right("amp_window")
def with_a_scaled_limit(model, batches, loss_fn, optimizer, n, weight, max_norm, scheduler, autocast, scaler):
    """Never unscales: the limit is scaled instead; and the optimizer steps by itself."""
    batches, losses = iter(batches), []
    while window := list(islice(batches, n)):
        optimizer.zero_grad()
        total = sum(map(weight, window))
        losses.append(0.0)
        for batch in window:
            with autocast:
                loss = loss_fn(model, batch)
            scaler.scale(loss).mul(weight(batch) / total).backward()
            losses[-1] += loss.item() * weight(batch) / total
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
        if norm.isfinite():
            scaler.step(optimizer)
            scheduler.step()
        elif scaler.is_enabled():
            scaler.unscale_(optimizer)  # so that update() hears of it
        scaler.update()
    return losses


# The guard makes scaler.step() the optimizer's own
right("amp_window")(edited("amp_window", ("scaler.step(optimizer)", "optimizer.step()")))

for bug, says, *changes in (
    ("loss-scale", "", (f" * {SHARE}", "")),
    ("token-weights", "", (f"{MEAN_LOSS} * {SHARE}", f"{MEAN_LOSS} / len(window)")),
    ("clip-timing", "", (UNSCALE, f"        clip_grad_norm_(model.parameters(), max_norm)\n{UNSCALE}")),
    ("clip-timing", "", (UNSCALE, "")),
    ("clip-timing", "", (UNSCALE, ""), (NORM, f"{NORM}; scaler.unscale_(optimizer)")),
    ("clip-timing", "", (NORM, "norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])")),
    ("scheduler-cadence", "", (MADE, MADE * 2)),
    ("scheduler-cadence", "", (GUARD, "True")),
    ("scheduler-cadence", "", (MADE, ""), (UPDATE, BY_THE_SCALE.format("=="))),
    # epfLLM/Megatron-LLM!34: without a scaler that is switched on, nobody looks for a NaN
    ("nonfinite-step", "update 2 uses an inf", (GUARD, "True"), (MADE, ""), (UPDATE, BY_THE_SCALE.format("<="))),
    ("scaler-timing", "a window ends without `update`", (UPDATE, f"    {UPDATE}")),
    ("scaler-timing", "scale, unscale_, step, and now scale", (UPDATE, "")),
    ("scaler-timing", "a window ends without `update`", (UPDATE, f"        if len(window) == n:\n    {UPDATE}")),
    ("irregular-window", "", (UPDATE, f"        optimizer.step()\n{UPDATE}")),
    ("stale-gradients", "`.grad` still holds an infinity or a NaN", (UPDATE + ZERO, f"    {ZERO}{UPDATE}")),
    (
        "scaler-timing",
        "`unscale_` comes after 2 of 4 micro-batches",
        (UNSCALE, ""),
        (SCALED, f"{SCALED}            if batch is window[1 % len(window)]: scaler.unscale_(optimizer)\n"),
    ),
    ("autocast-scope", "", (FORWARD, "            if True:\n    ")),
    ("autocast-scope", "", (FORWARD, "            if True:\n    "), OPENED),
    ("autocast-scope", "on in backward", (SCALED, f"    {SCALED}")),
    ("wrong-loss", "got the scaled loss", ("loss.item()", "scaler.scale(loss).item()")),
    (
        "held-graphs",
        "",
        ("        window_loss =", "        kept = []\n        window_loss ="),
        (SCALED, "            kept.append(scaler.scale(loss))\n"),
        (UNSCALE, f"        for loss in kept: loss.backward()\n{UNSCALE}"),
    ),
    ("missing-backward", "", ("for batch in window:", "for batch in window[:-1] or window:")),
    ("low-precision", "", (SHARE, "round(weight(batch) / total, 3)")),
    ("changed-input", "", ("    return losses", "    batches.clear()\n    return losses")),
):
    wrong("amp_window", bug, says)(edited("amp_window", *changes))
