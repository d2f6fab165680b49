"""Answers to "is_exact": does a loop leave in .grad the gradient of one large batch?"""

import copy

import torch
from torch import nn

from answers import right, wrong


def without_dropout(model):
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0


def joined(window):
    return tuple(torch.cat(parts) for parts in zip(*window, strict=True))


def pair(model, window, loss_fn, accumulate):
    """The large batch's gradient and the window's."""
    found = []
    for run in (lambda: loss_fn(model, joined(window)).backward(), lambda: accumulate(model, window, loss_fn)):
        model.zero_grad()
        run()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return found


def checker(compare, prepare=without_dropout):
    def answer(model, window, loss_fn, accumulate):
        prepare(model)
        return compare(*pair(model, window, loss_fn, accumulate))

    return answer


def relative(large, small):
    return ((small - large).norm() / large.norm()).item() < 1e-12


@right("is_exact")
def on_two_copies_with_tensors(model, window, loss_fn, accumulate):
    without_dropout(model)
    other = copy.deepcopy(model)
    loss_fn(model, joined(window)).backward()
    accumulate(other, window, loss_fn)
    pairs = list(zip(model.parameters(), other.parameters(), strict=True))
    gap = sum((a.grad - b.grad).square().sum() for a, b in pairs)
    return gap < 1e-24 * sum(a.grad.square().sum() for a, _ in pairs)


@right("is_exact")
def with_autograd_and_eval_of_dropout(model, window, loss_fn, accumulate):
    for layer in model.modules():
        if type(layer) is nn.Dropout:
            layer.eval()
    large = torch.autograd.grad(loss_fn(model, joined(window)), list(model.parameters()))
    accumulate(model, window, loss_fn)
    scale = max(g.abs().max() for g in large)
    pairs = zip(model.parameters(), large, strict=True)
    return all(torch.allclose(p.grad, g, rtol=0, atol=1e-11 * scale.item()) for p, g in pairs)


right("is_exact")(checker(relative))
wrong("is_exact", "misses-batchnorm", says="BatchNorm in training")(checker(relative, nn.Module.eval))
wrong("is_exact", "accuses-frozen")(checker(relative, lambda model: (model.train(), without_dropout(model))))
wrong("is_exact", "accuses-rounding")(checker(torch.equal))
wrong("is_exact", "misses-small-errors")(checker(lambda large, small: (small - large).norm() < 1e-4 * large.norm()))
wrong("is_exact", "misses-tiny-gradients")(
    checker(lambda large, small: torch.allclose(small, large, rtol=1e-10, atol=1e-11))
)
wrong("is_exact", "misses-wrong-loops", says="the gradient's sign")(
    checker(lambda large, small: abs(small.norm() - large.norm()) < 1e-12 * large.norm())
)


@wrong("is_exact", "accuses-dropout", says="inside another layer")
def looks_at_the_outer_layers_only(model, window, loss_fn, accumulate):
    for layer in model:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return relative(*pair(model, window, loss_fn, accumulate))


@wrong("is_exact", "misses-wrong-losses")
def takes_the_mean_of_the_losses_for_the_large_batch(model, window, loss_fn, accumulate):
    without_dropout(model)
    total = sum(len(y) for _, y in window)
    if any(isinstance(layer, nn.BatchNorm1d) and layer.training for layer in model.modules()):
        accumulate(model, window, loss_fn)
        return False
    found = []
    for run in (
        lambda: sum(loss_fn(model, batch) * len(batch[1]) / total for batch in window).backward(),
        lambda: accumulate(model, window, loss_fn),
    ):
        model.zero_grad()
        run()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return relative(*found)


@wrong("is_exact", "always-true", says="all 15 windows")
def keeps_one_tensor_under_two_names(model, window, loss_fn, accumulate):
    without_dropout(model)
    loss_fn(model, joined(window)).backward()
    large = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad.zero_()
    accumulate(model, window, loss_fn)
    small = [p.grad for p in model.parameters()]
    return all(torch.equal(one, other) for one, other in zip(large, small, strict=True))


@wrong("is_exact", "does-not-run")
def looks_for_batchnorm(model, window, loss_fn, accumulate):
    return not any(isinstance(layer, nn.BatchNorm1d) for layer in model.modules())


@wrong("is_exact", "wrong-type")
def returns_the_error(model, window, loss_fn, accumulate):
    without_dropout(model)
    large, small = pair(model, window, loss_fn, accumulate)
    return ((small - large).norm() / large.norm()).item()


@wrong("is_exact", "not-attempted")
def prints_only(model, window, loss_fn, accumulate):
    print(relative(*pair(model, window, loss_fn, accumulate)))
