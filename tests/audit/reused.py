"""Gradients that are read, put back, handed over, shared or left: what is a bug there, and what only looks like one."""

from contextlib import suppress

import torch
from runs import data, net, update, with_sgd
from table import row, said
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR


def put_back(put, last_zeroed=True):
    """Gradient surgery: the gradients of each task are read, zeroed, combined and put back before the step."""
    model, optimizer = with_sgd()
    for _ in range(4):
        gradients = []
        for k, (x, y) in enumerate(data(3)):
            F.cross_entropy(model(x), y).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
            if k < 2 or last_zeroed:
                optimizer.zero_grad()
        put(model, [sum(pieces) for pieces in zip(*gradients, strict=True)])
        update(optimizer)


def put_new(model, gradients):
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient


def copy_over(model, gradients):
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad.copy_(gradient)


row("gradients that are put back", lambda: put_back(put_new), "discarded-gradients")
row("gradients that replace the last", lambda: put_back(put_new, last_zeroed=False), "discarded-gradients")
row("gradients put back in place", lambda: put_back(copy_over, last_zeroed=False), "discarded-gradients", "undecided")


@said("discarded-gradients", "error")
def gradients_that_are_cancelled_put_nothing_back():
    model, optimizer = with_sgd(nn.Sequential(net(), nn.Linear(2, 2)))
    for _ in range(4):
        for x, y in data(3):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / 3).backward()
        model[1].zero_grad()
        optimizer.step()


# One forward pass, several backward calls; and parameters that have nothing to do with each other


def several_losses(shared, n=1, divide=1.0):
    """A loop over losses. `shared`: of one forward pass."""
    trunk, heads = net(), [nn.Linear(2, 2) for _ in range(3)]
    optimizer = SGD([*trunk.parameters(), *(p for head in heads for p in head.parameters())], lr=0.1)
    for _ in range(4):
        for x, y in data(n):
            out = trunk(x)
            for head in heads:
                loss = F.cross_entropy(head(out if shared else trunk(x)), y) * divide
                loss.backward(retain_graph=shared)
        update(optimizer)


def ensemble(members, n=1, divide=1.0):
    """Disjoint models in one optimizer, with a backward call each."""
    models = [net() for _ in range(members)]
    optimizer = Adam([p for model in models for p in model.parameters()], lr=0.01)
    for _ in range(4):
        for x, y in data(n):
            for model in models:
                (F.cross_entropy(model(x), y) * divide).backward()
        update(optimizer)


for run, name in (
    (lambda n, by: several_losses(True, n, by), "of one forward pass"),
    (lambda n, by: ensemble(3, n, by), "of an ensemble"),
):
    row(f"three losses {name}", lambda run=run: run(1, 1.0), "")
    row(f"three losses {name}, in windows", lambda run=run: run(2, 0.5), "")
    row(f"three losses {name}, in windows, undivided", lambda run=run: run(2, 1.0), "loss-scale", "error")
row("three tasks, or three micro-batches", lambda: several_losses(False), "", "undecided")


@said("loss-scale", "undecided")
def a_state_that_is_carried_on_with_its_graph():
    cell = nn.RNNCell(3, 4)
    optimizer = SGD(cell.parameters(), lr=0.1)
    for _ in range(3):
        state = torch.zeros(4, 4)
        for x, _ in data(3):
            state = cell(x, state)
            F.mse_loss(state, torch.ones(4, 4)).backward(retain_graph=True)
        update(optimizer)


# A script that fails, or is interrupted, inside a window


def loop_that_ends(error, clean_up=False, early_zero=False):
    model, optimizer = with_sgd()
    with suppress(RuntimeError):
        try:
            for i, (x, y) in enumerate(data(12)):
                if early_zero:
                    optimizer.zero_grad()
                (F.cross_entropy(model(x), y) / 4).backward()
                if i == 9:
                    raise error
                if (i + 1) % 4 == 0:
                    update(optimizer)
        finally:
            if clean_up:
                optimizer.zero_grad()


row("a run that ends inside a window", lambda: loop_that_ends(RuntimeError), "leftover-gradients", "error")
row("zeroing every time", lambda: loop_that_ends(RuntimeError, early_zero=True), "discarded-gradients", "error")


# Gradients of another loss


def gan(zero, detach=False, own_first=False):
    """One update of the critic and one of the generator, in turns. `zero` names the moments at which it zeroes."""
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    g, d = SGD(generator.parameters(), lr=0.1), SGD(critic.parameters(), lr=0.1)
    loss = F.binary_cross_entropy_with_logits
    real, fake = torch.ones(4, 1), torch.zeros(4, 1)

    def of_critic(x):
        d.zero_grad()
        made = generator(torch.randn(4, 2))
        (loss(critic(x), real) + loss(critic(made.detach() if detach else made), fake)).backward()
        d.step()

    def of_generator():
        if zero == "before":
            g.zero_grad()
        loss(critic(generator(torch.randn(4, 2))), real).backward()
        g.step()
        if zero == "after":
            g.zero_grad()

    for x, _ in data(6):
        if own_first:
            of_generator()
            of_critic(x)
        else:
            of_critic(x)
            of_generator()


for first in (True, False):
    order = "the generator first" if first else "the critic first"
    row(f"the critic's gradients in the generator, {order}", lambda f=first: gan("after", own_first=f), "", "error")
    row(f"a GAN, {order}", lambda f=first: gan("before", own_first=f), "")
    row(f"a GAN with detach(), {order}", lambda f=first: gan("after", detach=True, own_first=f), "")


# Parts of an optimizer's parameters


def partly_zeroed(zero, steps=6):
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in data(steps):
        F.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
        zero(body, head)


row("a part that is never zeroed", lambda: partly_zeroed(lambda body, head: head.zero_grad()), "", "error")
row(
    "a part that is never zeroed in place",
    lambda: partly_zeroed(lambda body, head: head.zero_grad(set_to_none=False)),
    "",
    "error",
)
row("parts one after the other", lambda: partly_zeroed(lambda body, head: (head.zero_grad(), body.zero_grad())), "")


@said("", "error")
def a_group_that_was_added_later_and_is_not_zeroed():
    body, head = nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2)
    optimizer = SGD(head.parameters(), lr=0.1)
    for i, (x, y) in enumerate(data(12)):
        if i == 6:
            body.requires_grad_(True)
            optimizer.add_param_group({"params": body.parameters()})
        (F.cross_entropy(head(body(x)), y) / 2).backward()
        if i % 2:
            optimizer.step()
            head.zero_grad()


# Calls from before the loop, and optimizers that are made again


@said("")
def a_call_of_zeros_before_the_loop():
    model, optimizer = with_sgd()
    (model(torch.randn(4, 3)) * 0).mean().backward()
    for i, (x, y) in enumerate(data(12)):
        ((model(x) - F.one_hot(y, 2)).square().mean() / 4).backward()
        if (i + 1) % 4 == 0:
            update(optimizer)


@said("irregular-window", "error")
def a_call_before_the_loop_that_brings_more_than_zeros():
    model, optimizer = with_sgd()
    (model(torch.randn(4, 3)) * 1e-3).mean().backward()
    for i, (x, y) in enumerate(data(12)):
        ((model(x) - F.one_hot(y, 2)).square().mean() / 4).backward()
        if (i + 1) % 4 == 0:
            update(optimizer)


@said("irregular-window", "error")
def a_new_optimizer_for_each_update_counts_as_one():
    model = net()
    for n in (1, 4, 4, 4):
        optimizer = SGD(model.parameters(), lr=0.1)
        for x, y in data(n):
            (F.cross_entropy(model(x), y) / 4).backward()
        update(optimizer)


# An optimizer that holds other parameters than those that are trained


def holding(owned, trained):
    parts = {name: net() for name in ("body", "head", "copy")}
    parts |= {"wide": nn.Linear(3, 5), "frozen": net().requires_grad_(False)}
    optimizers = [SGD([p for name in names.split() for p in parts[name].parameters()], lr=0.1) for names in owned]
    for x, y in data(4):
        sum(F.cross_entropy(parts[name](x), y) for name in trained).backward()
        for optimizer in optimizers:
            optimizer.step()
        for part in parts.values():
            part.zero_grad()


for owned, trained, *levels in [
    (["body head"], ["body", "wide"], "advice", "advice"),  # of other shapes
    (["body head"], ["body", "copy"], "error"),  # of the shapes of the head
    (["body head"], ["body"], "advice"),
    (["body"], ["body", "head"], "advice"),
    (["head"], ["wide"], "error"),
    (["head"], ["copy"], "error"),
    (["frozen"], ["body"], "error"),
]:
    row(
        f"{owned} is held and {trained} is trained",
        lambda owned=owned, trained=trained: holding(owned, trained),
        "orphan-parameters",
        *levels,
    )


# Another network's gradients, schedules, optimizers of the script's own


@said("foreign-gradients", "undecided")
def a_regularizer_of_the_body_below_a_head():
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    optimizers = [SGD(part.parameters(), lr=0.1) for part in (body, head)]
    for _ in range(6):
        x = torch.randn(5, 3)
        head(body(x).relu()).square().mean().backward()
        (0.01 * body.weight.square().sum()).backward()
        for optimizer in optimizers:
            update(optimizer)


def on_schedule(rate, levels_of=24):
    model, optimizer = with_sgd()
    schedule = LambdaLR(optimizer, rate)
    for i, (x, y) in enumerate(data(levels_of)):
        (F.cross_entropy(model(x), y) / 4).backward()
        schedule.step()
        if (i + 1) % 4 == 0:
            update(optimizer)


row("a schedule of one's own", lambda: on_schedule(lambda step: 1 / (1 + step)), "scheduler-cadence", "undecided")


@said("loss-scale", "undecided")
def the_steps_of_episodes_of_one_length():
    model, optimizer = with_sgd()
    for k, (x, y) in enumerate(data(16)):
        done = k % 4 == 3
        F.cross_entropy(model(x), y).backward()
        if done:
            optimizer.step()
            optimizer.zero_grad()
