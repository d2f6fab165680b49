"""Answers to "fold_into_momentum": SGD with momentum that accumulates in its own buffers."""

import torch
from torch.optim import SGD

from answers import edited, right, wrong


@right("fold_into_momentum")
def decays_at_the_first_piece(model, lr, momentum, weight_decay):
    buffers, arrived = {}, []

    def fold(p):
        if all(p is not other for other in arrived):
            arrived.append(p)
            buffers[p] = buffers[p] * momentum if p in buffers else torch.zeros_like(p)
            buffers[p].add_(p, alpha=weight_decay)
        buffers[p].add_(p.grad)
        p.grad = None

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(fold)

    @torch.no_grad()
    def step():
        while arrived:
            p = arrived.pop()
            p -= lr * buffers[p]

    return step


@right("fold_into_momentum")
def in_the_state_of_an_optimizer(model, lr, momentum, weight_decay):
    """The buffers are SGD's own; at the end of a window each stands in for the gradient of an SGD without momentum."""
    trained = [p for p in model.parameters() if p.requires_grad]
    state = SGD(trained, lr=lr).state

    def fold(p):
        buffer = state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        buffer.add_(p.grad)
        p.grad, state[p]["arrived"] = None, True

    for p in trained:
        p.register_post_accumulate_grad_hook(fold)

    @torch.no_grad()
    def step():
        for p in trained:
            if state[p].pop("arrived", False):
                buffer = state[p]["momentum_buffer"]
                p.add_(buffer.add_(p, alpha=weight_decay), alpha=-lr)
                buffer.mul_(momentum)

    return step


ARRIVED = "arrived = set()"
TRAINED = "[p for p in model.parameters() if p.requires_grad]"
FOLD = "        buffers[p] += p.grad\n        p.grad = None\n"
DECAY = "buffers[p] += weight_decay * p"
# A view is a tensor of a weight's size, but no memory of its own
right("fold_into_momentum")(
    edited("fold_into_momentum", (ARRIVED, "arrived, kept = set(), [p.detach() for p in trained]"))
)

for bug, *changes in (
    ("keeps-gradients", (FOLD, ""), (DECAY, f"buffers[p] += p.grad; p.grad = None; {DECAY}")),
    (  # as many gradients as ever, in a dictionary instead of .grad
        "second-buffer",
        (ARRIVED, "arrived, sums = set(), {}"),
        (FOLD, "        sums[p] = sums[p] + p.grad if p in sums else p.grad\n        p.grad = None\n"),
        (DECAY, f"buffers[p] += sums.pop(p); {DECAY}"),
    ),
    ("no-update", ("return step", "return lambda: None")),
    ("frozen-parameters", (TRAINED, "list(model.requires_grad_().parameters())")),
    ("wrong-value", (TRAINED, "[p for p in model.parameters() if p.requires_grad and p.dim() > 1]")),
    ("wrong-type", ("return step", "return 3")),
    ("raises", ("buffers[p] *= momentum", "buffers[p] *= 1 / 0")),
):
    wrong("fold_into_momentum", bug)(edited("fold_into_momentum", *changes))
