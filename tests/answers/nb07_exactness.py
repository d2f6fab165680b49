"""Answers to "is_exact": does a loop use the gradient of one large batch? And to "quiet"."""

import torch
from torch import nn

from answers import edited, right, wrong


def joined(window):
    return tuple(torch.cat(parts) for parts in zip(*window, strict=True))


@right("is_exact")
def with_a_hook_before_the_step(train, model, window, loss_fn, weight):
    loss_fn(model, joined(window)).backward()
    large = [p.grad.clone() for p in model.parameters()]
    optimizer, found = torch.optim.Adam(model.parameters()), []
    optimizer.zero_grad()
    optimizer.register_step_pre_hook(lambda *_: found.extend(p.grad.clone() for p in model.parameters()))
    train(model, window, loss_fn, optimizer, len(window), weight)
    gap = sum((a - b).square().sum() for a, b in zip(found, large, strict=True))
    return gap < 1e-24 * sum(b.square().sum() for b in large)


RESULT = "bool((found - large).norm() < 1e-12 * large.norm())"
LARGE = "    loss_fn(model, large_batch).backward()"
NORMALIZES = "any(isinstance(layer, nn.BatchNorm1d) and layer.training for layer in model.modules())"

for bug, says, *changes in (
    ("misses-batchnorm", "BatchNorm in training", (LARGE, f"    model.eval()\n{LARGE}")),
    ("accuses-frozen", "", (LARGE, f"    model.train()\n{LARGE}")),
    ("accuses-exact", "", (RESULT, "torch.equal(found, large)")),
    ("accuses-exact", "", ("lr=1.0", "lr=0.1")),
    ("accuses-late-zeroing", "zeroes after", ("    optimizer.zero_grad()\n", "")),
    ("misses-small-errors", "", ("1e-12", "1e-4")),
    ("misses-tiny-gradients", "", (RESULT, "torch.allclose(found, large, rtol=1e-10, atol=1e-11)")),
    ("misses-wrong-loops", "the gradient's sign", ("(found - large).norm()", "abs(found.norm() - large.norm())")),
    (
        "misses-wrong-losses",
        "",
        (LARGE, f"    if {NORMALIZES}:\n        return False\n{LARGE}"),
        ("loss_fn(model, large_batch)", "sum(loss_fn(model, b) * len(b[1]) / len(large_batch[1]) for b in window)"),
    ),
    ("wrong-type", "", (RESULT, "((found - large).norm() / large.norm()).item()")),
):
    wrong("is_exact", bug, says)(edited("is_exact", *changes))


@right("quiet")
def all_but_batchnorm(model):
    for layer in model.modules():
        layer.training &= isinstance(layer, nn.BatchNorm1d)
    return model


DRAWS = "(all_dropouts, nn.RReLU, nn.MultiheadAttention)"
for left, handled in (
    ("Dropout1d", "nn.Dropout"),
    ("attention", "all_dropouts"),
    ("RReLU", DRAWS.replace("nn.RReLU, ", "")),
):
    wrong("quiet", "still-random", left)(edited("quiet", (DRAWS, handled)))
wrong("quiet", "still-random", "LSTM")(edited("quiet", ("layer.dropout = 0.0", "pass")))
wrong("quiet", "other-mode", "BatchNorm in training mode")(lambda model: model.eval())
wrong("quiet", "other-mode", "frozen")(edited("quiet", ("    return", "    model[1].training = True\n    return")))
wrong("quiet", "still-random", "inside another layer")(edited("quiet", ("model.modules()", "model")))
wrong("quiet", "wrong-type")(lambda model: model.training)
