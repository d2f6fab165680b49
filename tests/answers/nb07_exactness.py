"""Answers to "is_exact": does a loop leave in .grad the gradient of one large batch?"""

import copy

import torch
from torch import nn

from answers import edited, right, wrong


def joined(window):
    return tuple(torch.cat(parts) for parts in zip(*window, strict=True))


@right("is_exact")
def on_two_copies_with_tensors(model, window, loss_fn, accumulate):
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    other = copy.deepcopy(model)
    loss_fn(model, joined(window)).backward()
    accumulate(other, window, loss_fn)
    pairs = list(zip(model.parameters(), other.parameters(), strict=True))
    gap = sum((a.grad - b.grad).square().sum() for a, b in pairs)
    return gap < 1e-24 * sum(a.grad.square().sum() for a, _ in pairs)


FOR = "    for layer in model.modules():"
RESULT = "bool((found - large).norm() < 1e-12 * large.norm())"
NORMALIZES = "any(isinstance(layer, nn.BatchNorm1d) and layer.training for layer in model.modules())"
right("is_exact")(edited("is_exact", ("layer.p = 0.0", "layer.eval()")))

for bug, says, *changes in (
    ("misses-batchnorm", "BatchNorm in training", (FOR, f"    model.eval()\n{FOR}")),
    ("accuses-frozen", "", (FOR, f"    model.train()\n{FOR}")),
    ("accuses-rounding", "", (RESULT, "torch.equal(found, large)")),
    ("misses-small-errors", "", ("1e-12", "1e-4")),
    ("misses-tiny-gradients", "", (RESULT, "torch.allclose(found, large, rtol=1e-10, atol=1e-11)")),
    ("misses-wrong-loops", "the gradient's sign", ("(found - large).norm()", "abs(found.norm() - large.norm())")),
    ("accuses-dropout", "inside another layer", ("model.modules()", "model")),
    (
        "misses-wrong-losses",
        "",
        (FOR, f"    if {NORMALIZES}:\n        accumulate(model, window, loss_fn)\n        return False\n{FOR}"),
        ("loss_fn(model, large_batch)", "sum(loss_fn(model, b) * len(b[1]) / len(large_batch[1]) for b in window)"),
    ),
    ("wrong-type", "", (RESULT, "((found - large).norm() / large.norm()).item()")),
):
    wrong("is_exact", bug, says)(edited("is_exact", *changes))
