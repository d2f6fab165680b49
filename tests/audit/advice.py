"""Programs for the rules that advise: losses that no backward call reaches, and layers that normalize micro-batches."""

import torch
from runs import data, in_windows, mean, net, update, with_sgd
from table import row, said
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import Adam


def penalty(out):
    return F.mse_loss(out, torch.zeros_like(out))


def log(*tensors):  # an assert would do, but pytest makes it use locals()
    assert all(tensor.requires_grad for tensor in tensors)


def train(step, count=12):
    """`step(out, y)` calls backward."""
    model, optimizer = with_sgd()
    for x, y in data(count):
        optimizer.zero_grad()
        step(model(x), y)
        optimizer.step()


def forgotten(out, y):
    aux = penalty(out)
    F.cross_entropy(out, y).backward()
    log(aux)


def added_without_its_graph(out, y):
    aux = penalty(out) * 0.5
    (F.cross_entropy(out, y) + aux.detach()).backward()


def logged(out, y):
    avg_loss = penalty(out)
    F.cross_entropy(out, y).backward()
    log(avg_loss)


def used(out, y):
    aux = penalty(out)
    (F.cross_entropy(out, y) + aux).backward()


def computed_without_a_graph(out, y):
    with torch.no_grad():
        aux = penalty(out)
    F.cross_entropy(out, y).backward()
    assert not aux.requires_grad


row("a loss that is forgotten in the total", lambda: train(forgotten), "unused-loss", "advice")
row("a loss that is added without its graph", lambda: train(added_without_its_graph), "unused-loss", "advice")
row("a loss that is logged", lambda: train(logged), "unused-loss")
row("two losses that are used", lambda: train(used), "unused-loss")
row("a metric without a graph", lambda: train(computed_without_a_graph), "unused-loss")


@said("unused-loss", "advice")
def a_loss_that_is_forgotten_in_windows_under_a_scaler():
    model, scaler = net(), GradScaler("cpu", init_scale=8.0)
    optimizer = Adam(model.parameters())
    for i, (x, y) in enumerate(data(16)):
        out = model(x)
        loss, aux = F.cross_entropy(out, y), penalty(out)
        scaler.scale(loss / 4).backward()
        if i % 4 == 3:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    log(aux)


@said("unused-loss")
def a_loss_that_is_used_by_its_own_optimizer():
    model, other = net(), net()
    optimizers = [Adam(each.parameters()) for each in (model, other)]
    for x, y in data(12):
        loss, other_loss = F.cross_entropy(model(x), y), F.cross_entropy(other(x), y)
        loss.backward()
        other_loss.backward()
        update(*optimizers)


def batchnorm(layer):
    return nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))


row("batchnorm", lambda: in_windows(mean, model=batchnorm(nn.BatchNorm1d(4))), "batchnorm", "advice")
row("batchnorm that is frozen", lambda: in_windows(mean, model=batchnorm(nn.BatchNorm1d(4)).eval()), "batchnorm")
row("no batchnorm", lambda: in_windows(mean), "batchnorm")
row("bfloat16", lambda: in_windows(mean, model=net().bfloat16()), "low-precision-accumulation", "advice")
