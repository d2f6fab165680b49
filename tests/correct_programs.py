"""Correct training programs of many kinds: an error found in one is a bug of the auditor.

Each trains a small model. What some do on purpose can't be known from outside: their
rows say what is asked.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import StepLR

from runs import in_windows, mean, update, with_sgd

PROGRAMS = []


def said(*findings: str) -> Callable[[Callable], Callable]:
    """All findings in the decorated program, such as "loss-scale error"; none if it is left alone.

    The program may take a model and its SGD.
    """

    def add(program: Callable) -> Callable:
        run = (lambda: program(*with_sgd(net()))) if signature(program).parameters else program
        row(program.__name__.replace("_", " "), run, *findings)
        return program

    return add


def row(name: str, program: Callable, *findings: str, window: int | None = None) -> None:
    PROGRAMS.append(pytest.param(program, sorted(findings), window, id=name))


def net(inputs: int = 3, outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


def batches(count: int = 12, size: int = 4, inputs: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):
        yield torch.randn(size, inputs), torch.randint(2, (size,))


# Losses, several of which are meant to be added up


@said("loss-scale undecided")
def real_and_fake_in_a_loop():
    def learn(critic, real, fake):
        for x, label in ((real, 0.9), (fake, 0.1)):
            F.binary_cross_entropy_with_logits(critic(x), torch.full((4, 1), label)).backward()

    generator, critic = net(2, 3), net(3, 1)
    g, d = Adam(generator.parameters()), Adam(critic.parameters())
    for x, _ in batches():
        d.zero_grad()
        learn(critic, x, generator(torch.randn(4, 2)).detach())
        d.step()
        g.zero_grad()
        F.binary_cross_entropy_with_logits(critic(generator(torch.randn(4, 2))), torch.ones(4, 1)).backward()
        g.step()


@said()
def a_loss_in_shards_of_what_the_decoder_made():
    encoder, decoder, head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 9)
    optimizers = [Adam(encoder.parameters()), Adam([*decoder.parameters(), *head.parameters()])]
    for x, _ in batches(size=8):
        out = decoder(encoder(x).tanh())
        leaf = out.detach().requires_grad_()
        for shard in leaf.split(2):
            (F.cross_entropy(head(shard), torch.randint(9, (2,)), reduction="sum") / 8).backward()
        out.backward(leaf.grad)
        update(*optimizers)


@said("loss-scale undecided")
def hooks_that_divide():
    model = net()
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient / 4)
    in_windows(lambda out, y, n: mean(out, y), [4] * 3, model)


# Several optimizers, and parameters that only some of them hold


@said()
def a_trunk_and_the_value_head_of_another_optimizer():
    trunk, value, policy = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
    of_policy, of_value = Adam([*trunk.parameters(), *policy.parameters()]), Adam(value.parameters())
    for x, y in batches():
        of_policy.zero_grad()
        of_value.zero_grad()
        F.mse_loss(value(trunk(x).tanh()), torch.randn(4, 1)).backward()
        of_value.step()
        mean(policy(trunk(x).tanh()), y).backward()
        of_policy.step()


@said("orphan-parameters undecided")
def every_optimizer_steps_beside_a_loss_network():
    trunk, heads, after = nn.Linear(3, 4), [nn.Linear(4, 2) for _ in range(3)], net(2, 2)
    optimizers = [Adam(module.parameters()) for module in (trunk, *heads)]
    for (x, y), head in zip(batches(), cycle(heads[:2]), strict=False):  # the turn of the third has not come yet
        mean(after(head(trunk(x))), y).backward()
        update(*optimizers)


# Gradients that are read, replaced, or used in more than one way


@said("discarded-gradients undecided")
def an_attack_that_saturates(model, optimizer):
    for x, y in batches():
        change = torch.zeros_like(x, requires_grad=True)
        for _ in range(5):
            mean(model(x + change), y).backward()
            change.data.add_(change.grad.sign(), alpha=0.1).clamp_(-0.2, 0.2)
            change.grad.zero_()
        optimizer.zero_grad()
        mean(model(x + change.detach()), y).backward()
        optimizer.step()


@said("discarded-gradients undecided")
def the_norm_of_each_loss_before_their_sum(model, optimizer):
    for x, y in batches():
        out = model(x)
        one, other = mean(out, y), F.mse_loss(out, x[:, :2])
        for loss in (one, other, one + other):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
        optimizer.step()


@said("stale-gradients undecided")
def weights_of_losses_whose_gradient_is_replaced():
    model, weights = net(3, 3), nn.Parameter(torch.ones(2))
    of_model, of_weights = Adam(model.parameters()), Adam([weights], lr=0.01)
    for x, y in batches():
        out = model(x)
        losses = [mean(out[:, :2], y), F.mse_loss(out[:, 2], x[:, 0])]
        of_model.zero_grad()
        sum(weights * torch.stack(losses)).backward(retain_graph=True)
        norms = [torch.autograd.grad(w * loss, model[2].weight, create_graph=True)[0].norm()
                 for w, loss in zip(weights, losses, strict=True)]  # fmt: skip
        weights.grad = torch.autograd.grad((norms[0] - norms[1]).abs(), weights)[0]
        of_model.step()
        of_weights.step()


@said("empty-step undecided")
def gradients_that_are_masked_to_zeros(model, optimizer):
    """As where only what all domains agree on is learned, and they agree on nothing."""
    for x, y in batches():
        gradients = torch.autograd.grad(mean(model(x), y), model.parameters())
        optimizer.zero_grad()
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = torch.zeros_like(gradient)
        optimizer.step()


@said("empty-step undecided")
def margins_that_are_kept():
    model, optimizer = with_sgd(net(3, 1))
    for i, (x, _) in enumerate(batches()):
        optimizer.zero_grad()
        F.relu((-1e6 if i % 3 else 1.0) - model(x)).mean().backward()
        optimizer.step()


# Optimizers that get other parameters, and updates without one


@said()
def points_that_are_added_to_a_scene():
    """The optimizer's parameter is replaced by a longer one, before the step."""
    points = nn.Parameter(torch.randn(10, 3))
    optimizer = SGD([points], lr=0.01)
    for i in range(20):
        F.mse_loss(points.sum(0), torch.ones(3)).backward()
        if i % 6 == 5:
            points = nn.Parameter(torch.cat([points, points[:2] + 0.1]).detach())
            optimizer.param_groups[0]["params"][0] = points
        update(optimizer)


@said("leftover-gradients undecided")
def first_order_meta_learning(model, optimizer):
    for _ in range(4):
        optimizer.zero_grad()
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for _ in range(3):
            inner = copy.deepcopy(model)
            for x, y in batches(2):
                mean(inner(x), y).backward()
                with torch.no_grad():
                    for p in inner.parameters():
                        p -= 0.1 * p.grad
                inner.zero_grad()
            ((x, y),) = batches(1)
            mean(inner(x), y).backward()
            for total, p in zip(sums, inner.parameters(), strict=True):
                total += p.grad / 3
        for p, total in zip(model.parameters(), sums, strict=True):
            p.grad = total
        optimizer.step()


# Graphs


@said()
def a_backward_call_on_meta_tensors_before_the_loop():
    """As a count of the operations does; then training."""
    with torch.device("meta"):
        mean(net()(torch.randn(4, 3)), torch.zeros(4, dtype=torch.long)).backward()
    in_windows(mean, [4] * 4, net())


# Scalers, clipping


def scaled(fused: bool) -> None:
    model = net()
    optimizer = AdamW(model.parameters(), fused=fused)
    schedule, scaler = StepLR(optimizer, 1), GradScaler("cpu")
    for i, (x, y) in enumerate(batches(16)):
        x = x * float("inf") if i == 5 else x
        scaler.scale(mean(model(x), y, 4)).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() >= before:
                schedule.step()
            optimizer.zero_grad()


row("a scaler that skips a step", partial(scaled, False))
row("a scaler that skips a fused step", partial(scaled, True))


@said("scaler-timing advice")
def two_stages_with_a_scaler_each(model, optimizer):

    def train():
        scaler = GradScaler("cpu")
        for x, y in batches():
            optimizer.zero_grad()
            scaler.scale(mean(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()

    train()
    train()


@said()
def the_norm_is_only_measured(model, optimizer):
    scaler = GradScaler("cpu")
    for i, (x, y) in enumerate(batches()):
        scaler.scale(mean(model(x), y, 4)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        if i % 4 == 3:
            scaler.step(optimizer)
            scaler.update()
            nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.zero_grad()


@said()
def clipping_where_a_batch_has_no_loss():
    for steps_all_the_same in (True, False):
        model, optimizer = with_sgd(net())
        for i, (x, y) in enumerate(batches(16)):
            optimizer.zero_grad()
            if has_loss := i % 5 != 2:
                mean(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if has_loss or steps_all_the_same:
                optimizer.step()
