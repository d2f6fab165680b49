"""The exercise of *low precision*: a window of a bfloat16 model, summed and stepped in float32."""

import torch
from torch import nn

from course_utils.exercises.judging import exercise, same
from course_utils.exercises.loop import require_step

WINDOWS = (  # for each micro-batch: its samples, and their gradient in the first column
    ((1, 1.0),) * 512,
    ((4, 1.0), (2, 2.0), (2, 3.0)),
    ((8, 64.0),),
)
EACH = torch.tensor([1.0, 2.0, 4.0, 1.0])  # the gradient in each column, and of the bias
LR = 2.0**-10
LOSES = "Which calls run between a `backward()` and the next? Does one lose what `.grad` held?"
LOST = "The copies are the weights that count. In which direction does Step 3 copy, and when?"
FORMAT = "wrong-format", "", "The model is to keep its format; only your sums and the copies are float32."
STALE = "stale-copies", "", "What does the next forward pass read: the copies, or the model's own weights?"


def sum_loss(model, batch):
    """A loss whose gradient is the sample itself: small integers, exact in bfloat16."""
    return (model.weight * batch).sum() + model.bias.sum() * batch[:, 0].sum()


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@exercise
def bf16_window(answer):
    model = nn.Linear(3, 1, dtype=torch.bfloat16)
    nn.init.ones_(model.weight), nn.init.ones_(model.bias)
    master, used, before = [p.detach().float() for p in model.parameters()], [], 0
    optimizer, copies = torch.optim.SGD(master, lr=LR), flat(master)

    def noted(*_):
        used.append(flat(torch.zeros_like(p) if p.grad is None else p.grad for p in master))

    optimizer.register_step_pre_hook(noted)
    for k, window in enumerate(WINDOWS, start=1):
        case = f"window {k} of {len(WINDOWS)}, {len(window)} micro-batches"
        batches = [value * torch.tensor([[1.0, 2.0, 4.0]] * size, dtype=torch.bfloat16) for size, value in window]
        answer(model, list(master), batches, sum_loss, optimizer)
        require_step(len(used) >= k, any(p.grad is not None for p in (*master, *model.parameters())), case)
        total, samples = sum(size * value for size, value in window) * EACH, sum(size for size, _ in window)
        same(f"{case}: the gradient at the step", used[-1], total / samples, wrong=[
            ("loss-scale", total, "", "`loss_fn` gives a sum over samples. What turns the window's into its mean?"),
            ("discarded-gradients", window[-1][0] * window[-1][1] / samples * EACH, "", LOSES),
            ("stale-gradients", (before + total) / samples, "", "Which tensors must be zero, or new, for each window?"),
            ("low-precision", EACH / 2, "", "Counting by ones, bfloat16 stops at 256. In which format do you add?"),
        ])  # fmt: skip
        copies, before = copies - LR * total / samples, before + total
        weights = flat(model.parameters())
        rounded = "lost-updates", flat(master).bfloat16().float(), "bfloat16 holds all of them", LOST
        same(f"{case}: the copies", flat(master), copies, wrong=[rounded])
        same(f"{case}: the model's format", weights.dtype, torch.bfloat16, FORMAT)
        same(f"{case}: the model's weights", weights.float(), copies.bfloat16().float(), STALE)
    return (
        "512 micro-batches in one window, ragged ones, updates below the rounding step and above it: copies and "
        "weights are those of a float32 sum."
    )
