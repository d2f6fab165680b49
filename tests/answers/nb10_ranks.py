"""Answers to "ddp_window": one window on two ranks."""

from answers import edited, right, wrong

STEP = "    optimizer.step()\n"
HELD = "nullcontext() if last else model.no_sync()"
WORLD = " * dist.get_world_size()"
BY_HAND = (STEP, f"    for p in model.parameters(): dist.all_reduce(p.grad)\n{STEP}")

# By the flag, set before the forward pass; and averaged by hand
right("ddp_window")(
    edited("ddp_window", (f"with {HELD}:", "model.require_backward_grad_sync = last\n        if True:"))
)
right("ddp_window")(edited("ddp_window", (HELD, "model.no_sync()"), (WORLD, ""), BY_HAND))

for bug, says, *changes in (
    ("sync-cadence", "", (HELD, "nullcontext()")),
    ("ranks-differ", "", (HELD, "model.no_sync()")),
    ("token-weights", "", ("len(inputs) for", "sum(p.numel() > 0 for p in [inputs]) for"), ("len(batch[0])", "1")),
    ("loss-scale", "0.5 times", (WORLD, "")),
    ("irregular-window", "", (STEP, f"    {STEP}")),
    ("stale-gradients", "[1, 2, 3, 4] instead of [3, 4]", ("    optimizer.zero_grad()\n", "")),
    ("leftover-gradients", "no step", (STEP, "")),
    ("discarded-gradients", "", (STEP, f"    optimizer.zero_grad()\n{STEP}")),
    ("waits", "", ("    dist.all_reduce", "    dist.get_rank() or dist.all_reduce")),
    ("raises", "rank 1, IndexError", ("    total =", "    window[3 * dist.get_rank()]\n    total =")),
    ("loss-scale", "2 times", BY_HAND),
):
    wrong("ddp_window", bug, says)(edited("ddp_window", *changes))
