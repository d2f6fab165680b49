"""A small training run to audit, and what to read off its report."""

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, Optimizer


def net():
    return nn.Linear(3, 2)


def with_sgd(model=None, **options):
    model = model or net()
    return model, SGD(model.parameters(), lr=0.1, **options)


def update(*optimizers):
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def data(count=8, size=4):
    return [(torch.randn(size, 3), torch.randint(2, (size,))) for _ in range(count)]


def train(n=4, divide=True, count=8, zero=True):
    model, optimizer = with_sgd()
    for i, (x, y) in enumerate(data(count)):
        loss = F.cross_entropy(model(x), y)
        (loss / n if divide else loss).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            if zero:
                optimizer.zero_grad()


def mean(out, y, n=1):
    return F.cross_entropy(out, y) / n


def in_windows(loss_of, sizes=(2, 2, 2), model=None):
    """An update for each of `sizes`: `n` micro-batches with `loss_of(out, y, n)` each."""
    model, optimizer = with_sgd(model)
    for n in sizes:
        for x, y in data(n):
            loss_of(model(x.to(next(model.parameters()).dtype)), y, n).backward()
        update(optimizer)


def scaled_steps(factors=(1.0,) * 8, scale=4.0, before_the_step=lambda *_: None, n=1, **options):
    """A micro-batch for each of `factors` of its loss, with a scaler; an update after each n-th."""
    model, optimizer = with_sgd(**options)
    scaler = GradScaler("cpu", init_scale=scale)
    for i, (factor, (x, y)) in enumerate(zip(factors, data(len(factors)), strict=True), start=1):
        scaler.scale(F.cross_entropy(model(x), y) * factor).backward()
        if i % n == 0:
            before_the_step(model, optimizer, scaler)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def found(report):
    return [(finding.rule, finding.level) for finding in report.findings]


def bits(thing) -> list:
    """All numbers in a thing, as bytes."""
    if isinstance(thing, (nn.Module, Optimizer)):
        gradients = [p.grad for p in thing.parameters()] if isinstance(thing, nn.Module) else []
        return bits([thing.state_dict(), gradients])
    if isinstance(thing, Tensor):
        values = thing.detach().as_subclass(Tensor).to_dense().contiguous()
        return [thing.dtype, values.reshape(-1).view(torch.uint8).tolist()]
    if isinstance(thing, dict):
        return [(key, bits(value)) for key, value in thing.items()]
    if isinstance(thing, (list, tuple)):
        return [bits(one) for one in thing]
    return [repr(thing)] if isinstance(thing, (int, float, str)) else []
