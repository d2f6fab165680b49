"""The exercise of *hooks*: SGD with momentum that accumulates a window in its own buffers, piece by piece."""

from collections.abc import Callable

import torch
from torch import nn

from course_utils.exercises.bench import Exercise, Seen, edits, returned
from course_utils.exercises.loop import Weights

WINDOWS = (2, 3, 2), (2, 4), (3,), (5, 2, 3)  # the samples in each micro-batch


def solution(model, lr, momentum, weight_decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    buffers = {p: torch.zeros_like(p) for p in trained}
    arrived = set()

    def fold(p):
        buffers[p] += p.grad
        p.grad = None
        arrived.add(p)

    for p in trained:
        p.register_post_accumulate_grad_hook(fold)

    @torch.no_grad()
    def step():
        for p in arrived:
            buffers[p] += weight_decay * p
            p -= lr * buffers[p]
            buffers[p] *= momentum
        arrived.clear()

    return step


def watch(answer: Callable, _: None) -> Seen:
    """Watches the weights before and after each step, and the gradients that stand in .grad."""
    held, still, seen = [], [], {}
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]).double()  # for even numbers of samples, and for odd ones
    model[0].bias.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.register_post_accumulate_grad_hook(lambda _: held.append(sum(p.grad is not None for p in trained)))
    step = returned(answer(model, 0.1, 0.75, 0.5), "the function `step`")
    for k, window in enumerate(WINDOWS, start=1):
        before = _weights(model)
        for size in window:
            x = torch.randn(size, 3, dtype=torch.float64)
            ((model[size % 2](x) - 1).square().mean() / len(window)).backward()
        still.append(_weights(model).agrees(before, 0.0))
        step()
        seen[f"window {k}"] = _weights(model)
    return {STILL: still, **seen, MOST: max(held, default=0)}


def _weights(model: nn.Module) -> Weights:
    return Weights({name: p.detach().clone() for name, p in model.named_parameters()})


STILL, MOST = "weights stand still before `step`", "gradients in .grad at one moment"
FOLD = "buffers[p] += p.grad"
DECAY, AFTER = "buffers[p] += weight_decay * p", "buffers[p] *= momentum"
FOLD_INTO_MOMENTUM = Exercise(
    "fold_into_momentum",
    "hooks",
    watch,
    solution,
    edits=[
        *edits("decays-each-piece", FOLD, "buffers[p] = buffers[p] * momentum ** (p in arrived) + p.grad"),
        *edits("never-decays", AFTER, ""),
        *edits("forgets-momentum", AFTER, "buffers[p].zero_()"),
        *edits("no-update", "p -= lr * buffers[p]", ""),
        *edits("no-weight-decay", DECAY, ""),
        *edits("decays-weights-each-piece", FOLD, f"{FOLD} + weight_decay * p.detach() * (p in arrived)"),
        *edits("decoupled-weight-decay", DECAY, "p *= 1 - lr * weight_decay"),
        *edits("idle-parameter", "for p in arrived:", "for p in trained:"),
        *edits("frozen-parameters/hook", " if p.requires_grad]", "]"),
    ],
    channels={STILL: "steps-in-backward", MOST: "keeps-gradients"},
)
