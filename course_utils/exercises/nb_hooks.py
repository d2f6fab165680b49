"""The exercise of *hooks*: SGD with momentum that accumulates a window in its own buffers."""

from copy import deepcopy

import torch
from torch import nn

from course_utils.exercises.judging import exercise, returned, same

WINDOWS = (0, 1, 0), (0, 0), (1,), (1, 0, 1)  # the layer of each piece
HINT = "Take one weight and two windows of two pieces. What is in it, its `.grad` and its buffer after each call?"


def train(model, step):
    """The weights before and after each step."""
    torch.default_generator.manual_seed(1)
    found = []
    for window in WINDOWS:
        for layer in window:
            (model[layer](torch.randn(2 + layer, 3)).sum() / len(window)).backward()
        found.append(deepcopy([*model.parameters()]))
        step()
        found.append(deepcopy([*model.parameters()]))
    return found


@exercise
def fold_into_momentum(answer):
    model, held = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]), []
    model[0].bias.requires_grad_(False)
    other = deepcopy(model)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.75, weight_decay=0.5)
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.register_post_accumulate_grad_hook(lambda _: held.append(sum(p.grad is not None for p in trained)))
    found = train(model, returned(answer(model, 0.1, 0.75, 0.5), "the function `step`"))
    for k, right in enumerate(train(other, optimizer.step)):
        same(f"weights {('before', 'after')[k % 2]} step {k // 2 + 1}", found[k], right, ("wrong-value", "", HINT))
    same("gradients in .grad at one moment", max(held), 1, ("keeps-gradients", "", HINT))
    return (
        "windows of any length, a frozen bias, an idle layer: the weights of torch.optim.SGD, one gradient at a time."
    )
