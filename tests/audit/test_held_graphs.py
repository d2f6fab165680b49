"""What `held-graphs` finds, and what only looks like it. The verdicts were written before the first run."""

from itertools import pairwise

import pytest
import torch
from runs import data, net, update, with_sgd
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from gradaudit import audit

CORRECT, HELD = [], []


def correct(function):
    CORRECT.append(pytest.param(function, id=function.__name__))
    return function


def held(level, evidence):
    return lambda function: HELD.append(pytest.param(function, level, evidence, id=function.__name__)) or function


def net_of(*sizes):
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def said(loop):
    with audit() as report:
        loop()
    assert report.history.windows
    return [(f.level, f.evidence) for f in report.findings if f.rule == "held-graphs"]


# Several losses, or several forward passes, in one backward call that are no micro-batches


@correct
def wgan_with_a_gradient_penalty():
    critic, made = net_of(3, 5, 1), torch.randn(4, 3)
    optimizer = Adam(critic.parameters())
    for x, _ in data():
        between = (0.3 * x + 0.7 * made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        (critic(made).mean() - critic(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        update(optimizer)


@correct
def domains_that_are_weighted_by_their_losses():
    model = net_of(3, 5, 2)
    optimizer = Adam(model.parameters())
    for _ in range(8):
        losses = torch.stack([F.cross_entropy(model(x), y) for x, y in data(3)])
        (losses @ losses.detach().softmax(0)).backward()
        update(optimizer)


@correct
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


@correct
def an_ensemble():
    members = nn.ModuleList(net() for _ in range(3))
    optimizer = SGD(members.parameters(), lr=0.1)
    for x, y in data():
        sum(F.cross_entropy(member(x), y) for member in members).backward()
        update(optimizer)


@correct
def several_backward_calls_of_two_micro_batches_each():
    model, optimizer = with_sgd()
    for i in range(8):
        pairs = data(2)
        (sum(F.cross_entropy(model(x), y) for x, y in pairs) / 8).backward()
        if i % 4 == 3:
            update(optimizer)


# A loss that several calls go through, but whose gradient counts once


@correct
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


@correct
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


@correct
def two_losses_of_one_forward_pass():
    model, optimizer = with_sgd()
    for x, y in data():
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        out.square().mean().backward(retain_graph=True)
        (out.abs().mean() * 0.1).backward()
        update(optimizer)


@held("error", {"calls": 4})
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


@correct
def a_memory_of_two_segments():
    segments(detach=False, retain=True, n=2)  # nothing tells this from two losses of one forward pass


@correct
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


CORRECT += [
    pytest.param(
        lambda: segments(detach=True, retain=True), id="a memory that is detached and a graph kept for nothing"
    ),
    pytest.param(lambda: collecting(lambda features: features.detach()), id="features that are detached"),
    pytest.param(lambda: collecting(lambda features: features, per_epoch=4, n=4, epochs=6), id="features of a window"),
]
HELD += [
    pytest.param(
        lambda: segments(detach=False, retain=True),
        "advice",
        {"passes": 4, "backward_call": 4},
        id="a memory with its graph",
    ),
    pytest.param(
        lambda: collecting(lambda features: features),
        "advice",
        {"graphs_alive": 11, "backward_call": 12},
        id="features with their graphs",
    ),
    pytest.param(
        lambda: collecting(lambda features: features.square().mean()),
        "advice",
        {"graphs_alive": 11, "backward_call": 12},
        id="norms of features with their graphs",
    ),
    pytest.param(
        lambda: collecting(lambda features: [features], per_epoch=60, n=4),
        "advice",
        {"graphs_alive": 19, "backward_call": 20},
        id="features of a long epoch",
    ),
    pytest.param(
        lambda: one_backward_call_for(4),
        "advice",
        {"graphs": 4, "calls": 4},
        id="one backward call for four micro batches",
    ),
    pytest.param(
        lambda: one_backward_call_for(3),
        "advice",
        {"graphs": 3, "calls": 4},
        id="one backward call for three micro batches",
    ),
]


@pytest.mark.parametrize("loop", CORRECT)
def test_what_only_looks_like_held_graphs_is_left_alone(loop):
    assert said(loop) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("loop", "level", "evidence"), HELD)
def test_held_graphs_are_named(loop, level, evidence):
    assert said(loop) == [(level, evidence)]


@pytest.mark.parametrize("count", [6, 12])
def test_losses_that_are_kept_are_told_from_other_tensors(count):
    model, kept = net(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for x, y in data(count):
            kept.append(F.cross_entropy(model(x), y))
            kept[-1].backward()
            update(optimizer)
    (finding,) = report.findings
    assert finding.evidence == {"graphs_alive": count - 1, "backward_call": count}
    assert finding.message.startswith(f"the graphs of {count - 1} earlier losses")
    assert finding.fix == "add up loss.item() or loss.detach()"


@pytest.mark.parametrize("kept_from", [0, 30])
def test_kept_losses_are_counted_by_those_that_are_looked_at(kept_from):
    model, kept = net(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for k, (x, y) in enumerate(data(100)):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            update(optimizer)
            if k >= kept_from:
                kept.append(loss)
    (finding,) = report.findings
    call = finding.evidence["backward_call"]
    assert call > 60  # the last at which the count is the largest
    assert abs(finding.evidence["graphs_alive"] - (call - 1 - kept_from)) <= 8
    assert "about" in finding.message


def test_a_loss_is_met_again_after_the_first_calls():
    model, optimizer = with_sgd()
    with audit() as report:
        for k, (x, y) in enumerate(data(40)):
            loss = F.cross_entropy(model(x), y)
            loss.backward(retain_graph=k > 29)
            if k > 29:
                loss.backward()
            update(optimizer)
    again = [call.again for call in report.history.backwards if call.again]
    assert len(again) == 10


@pytest.mark.parametrize("calls", range(20, 41, 4))
def test_the_last_loss_that_a_name_keeps_until_the_next_is_no_held_graph(calls):
    model, optimizer = with_sgd()
    with audit() as report:
        last = None
        for x, y in data(calls):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            update(optimizer)
            last = loss
    assert last is not None
    assert report.findings == []
    assert {call.alive for call in report.history.backwards} == {0, 1}
