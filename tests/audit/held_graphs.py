"""Programs for `held-graphs`: what is held, and what only looks like it."""

from itertools import pairwise

import torch
from runs import data, net, update, with_sgd
from table import row, said
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam


def net_of(*sizes):
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


# Several losses, or several forward passes, in one backward call that are no micro-batches


@said("held-graphs")
def wgan_with_a_gradient_penalty():
    critic, made = net_of(3, 5, 1), torch.randn(4, 3)
    optimizer = Adam(critic.parameters())
    for x, _ in data():
        between = (0.3 * x + 0.7 * made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        (critic(made).mean() - critic(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        update(optimizer)


@said("held-graphs")
def domains_that_are_weighted_by_their_losses():
    model = net_of(3, 5, 2)
    optimizer = Adam(model.parameters())
    for _ in range(8):
        losses = torch.stack([F.cross_entropy(model(x), y) for x, y in data(3)])
        (losses @ losses.detach().softmax(0)).backward()
        update(optimizer)


@said("held-graphs")
def an_episode_of_actor_and_critic():
    trunk, actor, critic = net_of(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)
    optimizer = Adam([*trunk.parameters(), *actor.parameters(), *critic.parameters()])
    for _ in range(4):
        policy_losses, value_losses = [], []
        for x, _ in data(5, 1):
            state = trunk(x)
            chosen = torch.distributions.Categorical(logits=actor(state))
            value = critic(state).squeeze()
            policy_losses.append(-chosen.log_prob(chosen.sample()).squeeze() * (1.5 - value.item()))
            value_losses.append(F.smooth_l1_loss(value, torch.tensor(1.5)))
        (torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()).backward()
        update(optimizer)


@said("held-graphs")
def an_ensemble():
    members = nn.ModuleList(net() for _ in range(3))
    optimizer = SGD(members.parameters(), lr=0.1)
    for x, y in data():
        sum(F.cross_entropy(member(x), y) for member in members).backward()
        update(optimizer)


@said("held-graphs")
def several_backward_calls_of_two_micro_batches_each():
    model, optimizer = with_sgd()
    for i in range(8):
        pairs = data(2)
        (sum(F.cross_entropy(model(x), y) for x, y in pairs) / 8).backward()
        if i % 4 == 3:
            update(optimizer)


# A loss that several calls go through, but whose gradient counts once


@said("held-graphs")
def tasks_that_are_measured_first():
    trunk, heads = net_of(3, 4), [nn.Linear(4, 2), nn.Linear(4, 2)]
    parameters = [*trunk.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    optimizer = SGD(parameters, lr=0.1)
    for x, y in data():
        state = trunk(x)
        losses = [F.cross_entropy(head(state), y) for head in heads]
        norms = []
        for loss in losses:
            loss.backward(retain_graph=True)
            norms.append(sum(p.grad.norm() for p in trunk.parameters()))
            optimizer.zero_grad()
        sum(loss / norm.detach() for loss, norm in zip(losses, norms, strict=True)).backward()
        update(optimizer)


@said("held-graphs")
def a_reconstruction_for_encoder_and_decoder():
    encoder, decoder = net_of(3, 2), net_of(2, 3)
    of_encoder, of_decoder = Adam(encoder.parameters()), Adam(decoder.parameters())
    for x, _ in data():
        code = encoder(x)
        loss = F.mse_loss(decoder(code), x)
        of_encoder.zero_grad()
        (loss + 0.1 * code.square().mean()).backward(retain_graph=True)
        gradients = [p.grad.clone() for p in encoder.parameters()]
        of_decoder.zero_grad()
        (2 * loss).backward()
        for p, gradient in zip(encoder.parameters(), gradients, strict=True):
            p.grad = gradient
        of_encoder.step()
        of_decoder.step()


@said("held-graphs")
def two_losses_of_one_forward_pass():
    model, optimizer = with_sgd()
    for x, y in data():
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        out.square().mean().backward(retain_graph=True)
        (out.abs().mean() * 0.1).backward()
        update(optimizer)


@said("held-graphs", "error")
def a_loss_that_counts_twice():
    model, optimizer = with_sgd()
    for x, y in data(4):
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        (loss + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()
        update(optimizer)


# What is carried from micro-batch to micro-batch


def segments(detach, retain, n=4):
    cell, head = nn.RNNCell(3, 4), nn.Linear(4, 2)
    optimizer = SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        state = torch.zeros(4, 4)
        for k in range(n):
            batches = data(2)
            for x, _ in batches:
                state = cell(x, state)
            (F.cross_entropy(head(state), batches[-1][1]) / n).backward(retain_graph=retain and k + 1 < n)
            if detach:
                state = state.detach()
        update(optimizer)


@said("held-graphs")
def a_memory_of_two_segments():
    segments(detach=False, retain=True, n=2)  # nothing tells this from two losses of one forward pass


@said("held-graphs")
def steps_inside_that_are_differentiated():
    model, optimizer = with_sgd(nn.Linear(3, 2, bias=False))
    for x, y in data():
        weight = model.weight
        for _ in range(3):
            (slope,) = torch.autograd.grad(F.cross_entropy(x @ weight.T, y), weight, create_graph=True)
            weight = weight - 0.1 * slope
        F.cross_entropy(x @ weight.T, y).backward()
        update(optimizer)


# What is collected


def collecting(kept, per_epoch=12, n=2, epochs=2):
    body, head = net_of(3, 4, 4), nn.Linear(4, 2)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for _ in range(epochs):
        collected = []
        for i, (x, y) in enumerate(data(per_epoch)):
            features = body(x)
            (F.cross_entropy(head(features), y) / n).backward()
            collected.append(kept(features))
            if (i + 1) % n == 0:
                update(optimizer)
        assert len(collected) == per_epoch


def one_backward_call_for(micro_batches):
    model, optimizer = with_sgd()
    for _ in range(4):
        torch.stack([F.cross_entropy(model(x), y) for x, y in data(micro_batches)]).mean().backward()
        update(optimizer)


for name, levels, loop in [
    ("a memory that is detached and a graph kept for nothing", [], lambda: segments(detach=True, retain=True)),
    ("features that are detached", [], lambda: collecting(lambda features: features.detach())),
    ("features of a window", [], lambda: collecting(lambda features: features, per_epoch=4, n=4, epochs=6)),
    ("a memory with its graph", ["advice"], lambda: segments(detach=False, retain=True)),
    ("one backward call for four micro-batches", ["advice"], lambda: one_backward_call_for(4)),
    ("one backward call for three micro-batches", ["advice"], lambda: one_backward_call_for(3)),
]:
    row(name, loop, "held-graphs", *levels)


@said("", "advice")
def losses_that_are_kept():
    model, kept = net(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data(12):
        kept.append(F.cross_entropy(model(x), y))
        kept[-1].backward()
        update(optimizer)


@said("")
def the_last_loss_that_a_name_keeps_until_the_next():
    model, optimizer = with_sgd()
    last = None
    for x, y in data(30):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        update(optimizer)
        last = loss
    assert last is not None
