"""The exercise of *hooks*: SGD with momentum that accumulates a window in its own buffers, piece by piece."""

from copy import deepcopy

import torch
from torch import nn

from course_utils.exercises.judging import Mistake, agree, exercise, returned, same

WINDOWS = (0, 1, 0), (0, 0), (1,), (1, 0, 1)  # the layer of each piece
WRONG = {  # a setting of SGD that gives the same as a wrong answer, and a hint
    "no-update": ({"lr": 0.0}, "Who moves the weights? The caller calls what you returned."),
    "forgets-momentum": ({"momentum": 0.0}, "What is left of the buffer when the next window begins?"),
    "no-weight-decay": ({"weight_decay": 0.0}, "SGD adds `weight_decay * p` before the gradient reaches the buffer."),
}
OTHER = "wrong-value", "", "Take one weight, two windows of two pieces, and write down its buffer after each call."
STILL = "The weights must stand still until a window is complete. Which function ends one?"
FREED = "keeps-gradients", "", "Step 4 frees each gradient as soon as it is used. Which of your lines does, and when?"


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def train(model, step):
    """The weights after each window."""
    torch.default_generator.manual_seed(1)
    after = []
    for window in WINDOWS:
        before = weights(model)
        for layer in window:
            (model[layer](torch.randn(2 + layer, 3)).sum() / len(window)).backward()
        if not agree(weights(model), before, 0.0, 0.0):
            raise Mistake("steps-in-backward", "weights move before `step` is called.", STILL)
        step()
        after.append(weights(model))
    return after


def train_by_sgd(model, **setting):
    model = deepcopy(model)
    setting = {"lr": 0.1, "momentum": 0.75, "weight_decay": 0.5} | setting
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], **setting)
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    return train(model, optimizer.step)


@exercise
def fold_into_momentum(answer):
    model, held = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]).double(), []
    model[0].bias.requires_grad_(False)
    right = train_by_sgd(model)
    wrong = [(bug, train_by_sgd(model, **setting), "", hint) for bug, (setting, hint) in WRONG.items()]
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.register_post_accumulate_grad_hook(lambda _: held.append(sum(p.grad is not None for p in trained)))
    found = train(model, returned(answer(model, 0.1, 0.75, 0.5), "the function `step`"))
    same("weights after each window", found, right, OTHER, wrong=wrong)
    same("gradients in .grad at one moment", max(held), 1, FREED)
    return (
        "full and short windows, a frozen bias and a layer that is idle in some windows: the weights are those of "
        "torch.optim.SGD, with one gradient at a time."
    )
