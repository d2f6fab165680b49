"""The exercise of *hooks*: SGD with momentum that accumulates a window in its own buffers."""

from copy import deepcopy

import torch
from torch import nn

from course_utils.exercises.judging import exercise, returned, same

WINDOWS = (0, 1, 0), (0, 0), (1,), (1, 0, 1)  # the layer of each piece
HINT = "Take one weight and two windows of two pieces. What is in it, its `.grad` and its buffer after each call?"


def train(model, step):
    """Yields the weights after each window."""
    random = torch.Generator().manual_seed(1)
    for window in WINDOWS:
        for layer in window:
            (model[layer](torch.randn(2 + layer, 3, generator=random)).sum() / len(window)).backward()
        step()
        yield [*model.parameters()]


@exercise("windows of any length, a frozen bias, an idle layer: the weights of SGD, one gradient at a time.")
def fold_into_momentum(answer):
    model, held = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]), []
    model[0].bias.requires_grad_(False)
    other = deepcopy(model)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.75, weight_decay=0.5)
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.register_post_accumulate_grad_hook(lambda _: held.append(sum(p.grad is not None for p in trained)))
    step = returned(answer(model, 0.1, 0.75, 0.5), "the function `step`")
    for k, (got, right) in enumerate(zip(train(model, step), train(other, optimizer.step), strict=True), start=1):
        same(f"the weights after step {k}", got, right, hint=HINT)
    same("gradients in .grad at one moment", max(held), 1, "keeps-gradients", HINT)
