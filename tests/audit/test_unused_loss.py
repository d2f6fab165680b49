"""A loss with a name that no backward call reaches. The verdicts were written before the first run."""

import gc
import weakref
from functools import wraps

import pytest
import torch
from runs import data, net, update, with_sgd
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam

from gradaudit import audit

UNUSED, USED = [], []


def unused(name):
    return lambda function: UNUSED.append(pytest.param(function, name, id=function.__name__)) or function


def used(function):
    USED.append(function)
    return function


def penalty(out):
    return F.mse_loss(out, torch.zeros_like(out))


def log(*tensors):  # an assert would do, but pytest makes it use locals()
    assert all(tensor.requires_grad for tensor in tensors)


def said(loop):
    with audit() as report:
        loop()
    assert report.history.windows.total >= 3
    return [(f.level, f.evidence["loss"]) for f in report.findings if f.rule == "unused-loss"]


def train(step, count=12, make=SGD):
    """`step(out, y)` calls backward."""
    model = net()
    optimizer = make(model.parameters(), lr=0.01)
    for x, y in data(count):
        optimizer.zero_grad()
        step(model(x), y)
        optimizer.step()


def each_step(count=12):
    """The decorated function takes a step of a training: it calls backward."""
    return lambda step: wraps(step)(lambda: train(step, count))


@unused("aux")
@each_step()
def forgotten_in_the_total(out, y):
    aux = penalty(out)
    total = F.cross_entropy(out, y)
    total.backward()
    log(aux)


@unused("aux_loss")
@each_step()
def added_as_a_number(out, y):
    aux_loss = out.abs().sum(1).max()
    (F.cross_entropy(out, y) + 0.1 * aux_loss.item()).backward()


@unused("aux")
@each_step()
def added_without_its_graph(out, y):
    aux = penalty(out) * 0.5
    (F.cross_entropy(out, y) + aux.detach()).backward()


@unused("loss_c")
@each_step()
def a_loss_that_shares_a_part_with_the_total(out, y):
    part = F.cross_entropy(out, y)
    loss_c = (1 + part - penalty(out)) + (1 + part - out.mean())
    (2 * part).backward()
    log(loss_c)


@unused("losses['aux']")
@each_step()
def one_of_a_dictionary(out, y):
    losses = {"ce": F.cross_entropy(out, y), "aux": penalty(out)}
    losses["ce"].backward()


@unused("of_module")
@each_step()
def a_global(out, y):
    global of_module
    of_module = penalty(out)
    F.cross_entropy(out, y).backward()


@unused("aux")
def in_windows_under_a_scaler():
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


@unused("aux")
def in_a_closure():
    model = net()
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for x, y in data(5):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            out = model(x)
            aux, loss = penalty(out), F.cross_entropy(out, y)
            loss.backward()
            return loss + 0 * aux.item()

        optimizer.step(closure)


@unused("aux")
@each_step(100)
def in_a_long_run(out, y):
    aux = penalty(out)
    F.cross_entropy(out, y).backward()
    log(aux)


@used
@each_step()
def in_the_total(out, y):
    aux, loss = penalty(out), F.cross_entropy(out, y)
    total = loss + 0.1 * aux.sqrt()
    total.backward()


@used
@each_step()
def with_a_backward_call_of_its_own(out, y):
    aux, loss = penalty(out), F.cross_entropy(out, y)
    loss.backward(retain_graph=True)
    aux.backward()


@used
@each_step()
def through_autograd_grad(out, y):
    aux, loss = penalty(out), F.cross_entropy(out, y)
    (slope,) = torch.autograd.grad(aux, out, retain_graph=True)
    (loss + slope.abs().mean()).backward()


@used
def for_steps_inside_that_are_differentiated():
    weight = torch.randn(3, 2, requires_grad=True)
    optimizer = SGD([weight], lr=0.1)
    for x, y in data(5):
        inner_loss = F.cross_entropy(x @ weight, y)
        (slope,) = torch.autograd.grad(outputs=inner_loss, inputs=[weight], create_graph=True)
        F.cross_entropy(x @ (weight - 0.1 * slope), y).backward()
        update(optimizer)


@used
def from_the_middle_of_the_run_on():
    calls = iter(range(200))

    def step(out, y):
        aux, total = penalty(out), F.cross_entropy(out, y)
        if next(calls) >= 50:
            total = total + aux
        total.backward()

    train(step, 100)


@used
@each_step()
def beside_a_loss_of_each_sample_for_the_log(out, y):
    losses = F.cross_entropy(out, y, reduction="none")
    losses_of_a_rare_class = losses[y > 1]  # of none
    F.cross_entropy(out, y).backward()
    log(losses, losses_of_a_rare_class)


@used
def every_fourth_time():
    calls = iter(range(200))

    def step(out, y):
        aux, total = penalty(out), F.cross_entropy(out, y)
        total = total + aux if next(calls) % 4 == 0 else total
        total.backward()

    train(step, 12)


@used
@each_step()
def without_a_graph(out, y):
    with torch.no_grad():
        aux = penalty(out)
    metric_loss = F.l1_loss(out.detach()[:, 0], y.float())
    F.cross_entropy(out, y).backward()
    log(out + aux + metric_loss)


@used
def in_evaluation():
    model, optimizer = with_sgd()
    for _ in range(3):
        for x, y in data(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        for x, y in data(3):
            val_loss = F.cross_entropy(model(x), y)  # with a graph, but not in training
    log(val_loss)


@used
def added_up_for_the_log():
    running_loss = 0

    def step(out, y):
        nonlocal running_loss
        loss = F.cross_entropy(out, y)
        loss.backward()
        running_loss += loss
        mean_loss = running_loss / 4
        log(mean_loss)

    train(step)


@used
def elements_and_a_sum_that_are_made_for_the_log():
    model, optimizer = with_sgd()
    for x, y in data(12):
        out = model(x)
        losses = torch.stack([F.cross_entropy(out, y), penalty(out)])[None].mean(0)
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        all_losses = losses.sum()
        for loss in losses:  # the last one is still there when the next backward call begins
            log(loss, all_losses)


@unused("last_loss")
@each_step()
def an_element_that_is_taken_before_the_backward_call(out, y):
    losses = torch.stack([F.cross_entropy(out, y), penalty(out)])[None].mean(0)
    last_loss = losses[1]
    losses[0].backward()
    log(last_loss)


@used
@each_step()
def two_halves_of_a_critics_loss(out, y):
    loss_real, loss_fake = F.cross_entropy(out[:2], y[:2]), F.cross_entropy(out[2:], y[2:])
    loss_real.backward(retain_graph=True)
    loss_fake.backward()
    loss = loss_real + loss_fake
    log(loss)


@used
@each_step()
def a_mean_that_is_no_loss(out, y):
    level = out.mean()
    F.cross_entropy(out, y).backward()
    log(level)


@pytest.mark.parametrize(("loop", "name"), UNUSED)
def test_a_loss_that_is_never_reached_is_named(loop, name):
    assert said(loop) == [("advice", name)]


@pytest.mark.parametrize("loop", USED, ids=lambda loop: loop.__name__)
def test_a_loss_that_is_used_now_and_then_is_left_alone(loop):
    assert said(loop) == []


@pytest.mark.parametrize(
    ("updates", "every", "seen"),
    [(3, 1, 3), (8, 2, 4), (2, 1, None), (9, 3, None)],
    ids=["in three updates", "in every second one", "in two", "in every third one"],
)
def test_a_loss_is_unused_if_it_is_seen_often_enough(updates, every, seen):
    turns = iter(range(updates))

    def step(out, y):
        if next(turns) % every == 0:
            aux = penalty(out)
            log(aux)
        F.cross_entropy(out, y).backward()

    with audit() as report:
        train(step, updates)
    found = [f.evidence for f in report.findings if f.rule == "unused-loss"]
    assert found == ([{"loss": "aux", "updates": seen}] if seen else [])


def test_no_variable_lives_longer():
    dead = []

    def step(out, y):
        aux, loss = penalty(out), F.cross_entropy(out, y)
        loss.backward()
        reference = weakref.ref(aux)
        del aux
        dead.append(reference() is None)

    gc.disable()
    try:
        assert said(lambda: train(step)) == [("advice", "aux")]
    finally:
        gc.enable()
    assert dead == [True] * 12


def test_what_locals_has_handed_out_stays_as_it_is():
    handed_out = []

    def step(out, y):
        settings = locals()
        handed_out.append((settings, list(settings)))
        aux, loss = penalty(out), F.cross_entropy(out, y)
        loss.backward()
        log(aux)

    assert said(lambda: train(step)) == []  # its variables are not looked at
    assert all(list(settings) == names for settings, names in handed_out)
