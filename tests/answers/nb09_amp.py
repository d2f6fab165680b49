"""Answers to "amp_window": one window under a GradScaler."""

import math

from answers import edited, right, wrong


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


SHARE = "(len(batch) / samples)"
SCALED = "        scaler.scale(loss).backward()\n"
UNSCALE = "    scaler.unscale_(optimizer)\n"
CLIP = "norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
RULE = "bool(norm.isfinite() and norm <= skip_norm)"
SCHEDULE = "        scheduler.step()\n"
UPDATE = "    scaler.update()"
BY_THE_SCALE = "    scale = scaler.get_scale()\n    scaler.update()\n    made = made and scale {} scaler.get_scale()\n"
FOR = "    for batch in window:\n"

# Shares in float32, and a schedule that is stepped as the scale says
right("amp_window")(edited("amp_window", (SHARE, "(torch.tensor(len(batch)).float() / samples)")))

for bug, says, *changes in (
    ("loss-scale", "", (f" * {SHARE}", "")),
    ("token-weights", "", (SHARE, "(1 / len(window))")),
    ("clip-timing", "", (UNSCALE, f"    nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n{UNSCALE}")),
    (
        "clip-timing",
        "the norm at the step is 0.00977 instead of",
        (UNSCALE, ""),
        (CLIP, f"{CLIP}; scaler.unscale_(optimizer)"),
    ),
    ("clip-timing", "", (CLIP, "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])")),
    ("irregular-window", "a step too many", ("norm <= skip_norm", "min(norm, max_norm) <= skip_norm")),
    ("leftover-gradients", "no step has used a gradient", ("norm <= skip_norm", "norm < skip_norm")),
    ("scheduler-cadence", "", (SCHEDULE, SCHEDULE * 2)),
    ("raises", "unscale_() has already been called", (UPDATE, f"    if made: {UPDATE.strip()}")),
    ("irregular-window", "", (UPDATE, f"    optimizer.step()\n{UPDATE}")),
    (  # epfLLM/Megatron-LLM!34: without a scaler that is switched on, nobody looks for a NaN
        "irregular-window",
        "",
        (RULE, "not norm > skip_norm"),
        (SCHEDULE, ""),
        (UPDATE, BY_THE_SCALE.format("<=") + "    if made: scheduler.step()\n    pass"),
    ),
    (
        "scheduler-cadence",
        "",
        (SCHEDULE, ""),
        (UPDATE, BY_THE_SCALE.format("==") + "    if made: scheduler.step()\n    pass"),
    ),
    (
        "token-weights",
        "count [1.0, 1.0, 1024.0, 1024.0] times",
        (UNSCALE, ""),
        (SCALED, f"{SCALED}        if batch is window[1 % len(window)]: scaler.unscale_(optimizer)\n"),
        ("clip_grad_norm_(model.parameters(), max_norm)", "get_total_norm([p.grad for p in model.parameters()])"),
    ),
    (
        "held-graphs",
        "",
        ("    samples =", "    kept = []\n    samples ="),
        (SCALED, "        kept.append(scaler.scale(loss))\n"),
        (UNSCALE, f"    for loss in kept: loss.backward()\n{UNSCALE}"),
    ),
    ("leftover-gradients", "", (FOR, f"{FOR}        loss_fn(model, batch).backward()\n        return False\n")),
    ("missing-backward", "", (FOR, "    for batch in window[:-1] or window:\n")),
    ("low-precision", "", ("loss_fn(model, batch)", "loss_fn(model, batch).bfloat16()")),
    ("changed-input", "", ("return made", "window.clear()\n    return made")),
    ("wrong-value", "", ("return made", "return True")),
):
    wrong("amp_window", bug, says)(edited("amp_window", *changes))
