"""Answers to "fold_into_momentum": SGD with momentum that accumulates in its own buffers."""

import torch
from torch.optim import SGD

from answers import edited, right, wrong


@right("fold_into_momentum")
def in_the_state_of_an_optimizer(model, lr, momentum, weight_decay):
    """The buffers are SGD's own; the old one decays when the first piece of a window arrives."""
    trained = [p for p in model.parameters() if p.requires_grad]
    state, arrived = SGD(trained, lr=lr).state, []

    def fold(p):
        buffer = state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        if all(p is not other for other in arrived):
            arrived.append(p)
            buffer.mul_(momentum).add_(p.detach(), alpha=weight_decay)
        buffer.add_(p.grad)
        p.grad = None

    for p in trained:
        p.register_post_accumulate_grad_hook(fold)

    @torch.no_grad()
    def step():
        while arrived:
            p = arrived.pop()
            p -= lr * state[p]["momentum_buffer"]

    return step


FOLD = "        buffers[p] += p.grad\n        p.grad = None\n"
DECAY = "buffers[p] += weight_decay * p"
for bug, says, *changes in (
    ("keeps-gradients", "", (FOLD, ""), (DECAY, f"buffers[p] += p.grad; p.grad = None; {DECAY}")),
    ("wrong-value", "before step 1", ("        arrived.add(p)\n", "        arrived.add(p)\n        step()\n")),
    ("wrong-value", "after step 1", ("p -= lr * buffers[p]", "pass")),
    ("wrong-value", "after step 2", ("buffers[p] *= momentum", "pass")),
    ("wrong-value", "after step 1", (DECAY, "pass")),
    ("wrong-value", "after step 2", ("for p in arrived", "for p in trained")),
):
    wrong("fold_into_momentum", bug, says)(edited("fold_into_momentum", *changes))
