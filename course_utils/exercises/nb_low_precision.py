"""The exercise of *low precision*: a window of a bfloat16 model, summed and stepped in float32."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector as flat

from course_utils.exercises.judging import exercise, not_attempted, same

# By window, for each micro-batch: its samples, and their gradient in the first column.
WINDOWS = ((1, 1.0),) * 512, ((4, 1.0), (2, 2.0), (2, 3.0)), ((8, 64.0),)
EACH, LR = torch.tensor([1.0, 2.0, 4.0, 1.0]), 2.0**-10  # the gradient in each column, and of the bias
HINT = "Follow one weight through window 1, where each of 512 gradients is 1: where, and in which format, is what?"


def sum_loss(model, batch):
    """A loss whose gradient is the sample itself: small integers, exact in bfloat16."""
    return (model.weight * batch).sum() + model.bias.sum() * batch[:, 0].sum()


@exercise("512 micro-batches in one window, ragged ones, small updates: copies and weights are those of a float32 sum.")
def bf16_window(answer):
    model = nn.Linear(3, 1, dtype=torch.bfloat16)
    nn.init.ones_(model.weight), nn.init.ones_(model.bias)
    master = [p.detach().float() for p in model.parameters()]
    optimizer, copies = torch.optim.SGD(master, lr=LR), flat(master)
    for k, window in enumerate(WINDOWS, start=1):
        case = f"window {k} of {len(WINDOWS)}, {len(window)} micro-batches"
        batches = [value * torch.tensor([[1.0, 2.0, 4.0]] * size, dtype=torch.bfloat16) for size, value in window]
        answer(model, list(master), batches, sum_loss, optimizer)
        if torch.equal(flat(master), copies):
            raise not_attempted(f"{case}: no step has changed the copies yet.")
        copies = copies - LR * EACH * sum(size * value for size, value in window) / sum(size for size, _ in window)
        same(f"{case}: the copies", flat(master), copies, hint=HINT)
        same(f"{case}: the model's weights", flat(model.parameters()), copies.bfloat16(), hint=HINT)
