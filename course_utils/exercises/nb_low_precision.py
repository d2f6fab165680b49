"""The exercise of *low precision*: a window of a bfloat16 model, summed in float32 and stepped on float32 copies."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_utils.exercises.bench import Exercise, Seen, edits
from course_utils.exercises.loop import require_step

WINDOWS = (  # for each micro-batch: its samples, and their gradient in the first column
    ((1, 1.0),) * 512,
    ((4, 1.0), (2, 2.0), (2, 3.0)),
    ((8, 64.0),),
)


def sum_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The gradient of a sample is the sample itself: small integers, which bfloat16 holds exactly."""
    return (model.weight * batch).sum() + model.bias.sum() * batch[:, 0].sum()


def solution(model, master, window, loss_fn, optimizer):
    sums = [torch.zeros_like(copy) for copy in master]
    for batch in window:
        loss_fn(model, batch).backward()
        for p, total in zip(model.parameters(), sums, strict=True):
            total += p.grad
        model.zero_grad()
    samples = sum(len(batch) for batch in window)
    for copy, total in zip(master, sums, strict=True):
        copy.grad = total / samples
    optimizer.step()
    with torch.no_grad():
        for p, copy in zip(model.parameters(), master, strict=True):
            p.copy_(copy)


def watch(answer: Callable, _: None) -> Seen:
    """Watches the format, the float32 copies and the model's weights, window after window."""
    model, seen = nn.Linear(3, 1, dtype=torch.bfloat16), {}
    for p in model.parameters():
        p.data.fill_(1.0)
    master = [p.detach().float() for p in model.parameters()]
    optimizer = torch.optim.SGD(master, lr=2.0**-10)
    for k, window in enumerate(WINDOWS, start=1):
        batches = [torch.tensor([[1.0, 2.0, 4.0]] * size, dtype=torch.bfloat16) * value for size, value in window]
        answer(model, list(master), batches, sum_loss, optimizer)
        said = f"window {k} of {len(WINDOWS)}, {len(window)} micro-batches"
        copies = torch.cat([copy.flatten() for copy in master])
        require_step((copies != 1.0).any(), any(copy.grad is not None for copy in master), said)
        seen[f"{said}: formats of the model"] = [str(p.dtype) for p in model.parameters()]
        seen[f"{said}: copies"] = copies
        seen[f"{said}: weights"] = torch.cat([p.detach().flatten() for p in model.parameters()])
    return seen


ADD, MEAN, COPY = "total += p.grad", "copy.grad = total / samples", "p.copy_(copy)"
SUMS = "[torch.zeros_like(copy) for copy in master]"
BF16_WINDOW = Exercise(
    "bf16_window",
    "low_precision",
    watch,
    solution,
    edits=[
        *edits("low-precision", ADD, "total.copy_(total.bfloat16() + p.grad)"),
        *edits("lost-updates", MEAN, MEAN + "; copy.copy_(copy.bfloat16())"),
        *edits("loss-scale", MEAN, "copy.grad = total"),
        *edits("discarded-gradients", ADD, "total.copy_(p.grad)"),
        *edits("stale-gradients", SUMS, f"optimizer.__dict__.setdefault('sums', {SUMS})"),
        *edits("stale-gradients/grad", "model.zero_grad()", ""),
        *edits("stale-copies", COPY, "pass"),
        *edits("wrong-format", COPY, "p.data = copy.clone()"),
    ],
)
