"""The exercise of *hooks*: SGD with momentum that accumulates a window in its own buffers, piece by piece."""

import gc
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.models import mlp
from course_utils.practice.bench import Exercise, Mistake, Seen, edits, only_new_objects, returned
from course_utils.practice.loop import Weights


class Experts(nn.Module):
    """One of two experts, by the number of samples: the other has no gradient."""

    def __init__(self):
        super().__init__()
        self.odd, self.even = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.odd if len(x) % 2 else self.even)(x).tanh()


class Twice(nn.Module):
    """One layer used twice, each time under a reentrant checkpoint."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        again = partial(checkpoint, lambda x: self.layer(x).tanh(), use_reentrant=True)
        return again(again(x.detach().requires_grad_()))


def with_a_frozen_bias() -> nn.Module:
    model = mlp(3, 4, 2)
    model[0].bias.requires_grad_(False)
    return model


class Case(NamedTuple):
    name: str
    model: Callable[[], nn.Module]
    windows: list[list[int]]  # the samples in each micro-batch
    decay: float = 0.5
    memory: bool = False

    def __str__(self) -> str:
        return self.name


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


def watch(answer: Callable, case: Case) -> Seen:
    """Watches the weights after each window, the gradients that stand in .grad, and tensors of a weight's size."""
    with only_new_objects():
        model, held, kept = case.model().double(), [], 0
        trained = [p for p in model.parameters() if p.requires_grad]
        for p in trained:
            p.register_post_accumulate_grad_hook(lambda _: held.append(sum(p.grad is not None for p in trained)))
        before, tensors, seen, moves = _weights(model), _tensors(model) if case.memory else 0, {}, []
        step = returned(answer(model, 0.1, 0.75, case.decay), "the function `step`")
        if not callable(step):
            raise Mistake("wrong-type", f"expected a function, got a {type(step).__name__}.")
        learns = [p.requires_grad for p in model.parameters()]
        for k, window in enumerate(case.windows, start=1):
            for size in window:
                x = torch.randn(size, 3, dtype=torch.float64)
                ((model(x) - 1).square().mean() / len(window)).backward()
            moves.append(_weights(model).agrees(before, 0.0))
            if k == 2 and case.memory:
                kept = _tensors(model) - tensors
            step()
            moves.append(not _weights(model).agrees(before, 0.0))
            before = seen[f"window {k}"] = _weights(model)
    return {
        "parameters that learn": learns,
        "weights stand still before `step`": moves[::2],
        "weights move in `step`": moves[1::2],
        **seen,
        "gradients in .grad at one moment, beside the newest": max(held) - 1 if held else 0,
        "tensors of a weight's size beside the buffer": max(kept - 1, 0),
    }


def _weights(model: nn.Module) -> Weights:
    return Weights({name: p.detach().clone() for name, p in model.named_parameters()})


def _tensors(model: nn.Module) -> int:
    """How many tensors of the first weight's shape the collector sees; those that share memory count once."""
    gc.collect()
    first = next(model.parameters())
    alike = [thing for thing in gc.get_objects() if type(thing) is Tensor and thing.shape == first.shape]
    return len({tensor.data_ptr() for tensor in alike} - {first.data_ptr()})


FOLD = "buffers[p] += p.grad"
DECAY, AFTER = "buffers[p] += weight_decay * p", "buffers[p] *= momentum"
ARRIVED = "for p in arrived:"
FOLD_INTO_MOMENTUM = Exercise(
    "fold_into_momentum",
    "hooks",
    watch,
    solution,
    cases=[
        Case("windows of 3, 3 and 1", lambda: mlp(3, 4, 2), [[4] * 3, [4] * 3, [4]], memory=True),
        Case("no weight decay", lambda: mlp(3, 4, 2), [[4] * 2] * 3, decay=0.0),
        Case("a frozen bias", with_a_frozen_bias, [[4] * 2] * 2),
        Case("an expert that is idle in some windows", Experts, [[2, 3], [2, 4], [4, 2], [3, 2]]),
        Case("a layer used twice, reentrant", Twice, [[4] * 2] * 3),
    ],
    edits=[
        *edits("decays-each-piece", FOLD, "buffers[p] = buffers[p] * momentum ** (p in arrived) + p.grad"),
        *edits("never-decays", AFTER, ""),
        *edits("forgets-momentum", AFTER, "buffers[p].zero_()"),
        *edits("no-weight-decay", DECAY, ""),
        *edits("decays-weights-each-piece", FOLD, f"{FOLD} + weight_decay * p.detach() * (p in arrived)"),
        *edits("decoupled-weight-decay", DECAY, "p *= 1 - lr * weight_decay"),
        *edits("loss-scale", FOLD, f"{FOLD} / 3", f"{FOLD} * 3"),
        *edits("idle-parameter", ARRIVED, "for p in trained:"),
        *edits(
            "idle-parameter/momentum",
            "arrived.clear()",
            f"for p in set(trained) - arrived:\n    {AFTER}\narrived.clear()",
        ),
        *edits("frozen-parameters/hook", " if p.requires_grad]", "]"),
        *edits("steps-in-backward/early", "arrived.add(p)", "arrived.add(p)\nstep()"),
    ],
    channels={
        "parameters that learn": "frozen-parameters",
        "weights stand still before `step`": "steps-in-backward",
        "weights move in `step`": "no-update",
        "gradients in .grad at one moment, beside the newest": "keeps-gradients",
        "tensors of a weight's size beside the buffer": "second-buffer",
    },
)
