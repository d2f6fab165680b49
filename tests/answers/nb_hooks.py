"""Answers to "fold_into_momentum": SGD with momentum that accumulates in its own buffers."""

from answers import edited, right, wrong

FOLD = "        buffers[p] += p.grad\n        p.grad = None\n"
DECAY, MOMENTUM = "buffers[p] += weight_decay * p", "buffers[p] *= momentum"
# The old momentum decays when the first piece of a window arrives.
LATE = f"        if p not in arrived: {MOMENTUM}\n"
right("fold_into_momentum")(edited("fold_into_momentum", (MOMENTUM, "pass"), (FOLD, LATE + FOLD)))

for bug, says, *changes in (
    ("keeps-gradients", "", (FOLD, ""), (DECAY, f"buffers[p] += p.grad; p.grad = None; {DECAY}")),
    ("wrong-value", "after step 1", ("        arrived.add(p)\n", "        arrived.add(p)\n        step()\n")),
    ("wrong-value", "after step 1", ("p -= lr * buffers[p]", "pass")),
    ("wrong-value", "after step 2", (MOMENTUM, "pass")),
    ("wrong-value", "after step 1", (DECAY, "pass")),
    ("wrong-value", "after step 2", ("for p in arrived", "for p in trained")),
):
    wrong("fold_into_momentum", bug, says)(edited("fold_into_momentum", *changes))
