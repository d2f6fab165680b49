"""Gradients that are read, put back, handed over, shared or left: what is a bug there, and what only looks like one."""

from contextlib import suppress

import pytest
import torch
from runs import data, found, net, update, with_sgd
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from gradaudit import audit


def clones(model):
    return [p.grad.clone() for p in model.parameters()]


def sums(gradients):
    return [sum(pieces) for pieces in zip(*gradients, strict=True)]


# Read, and put back


def put_back(put, last_zeroed=True):
    """Gradient surgery: the gradients of each task are read, zeroed, combined and put back before the step."""
    model, optimizer = with_sgd()
    for _ in range(4):
        gradients = []
        for k, (x, y) in enumerate(data(3)):
            F.cross_entropy(model(x), y).backward()
            gradients.append(clones(model))
            if k < 2 or last_zeroed:
                optimizer.zero_grad()
        put(model, sums(gradients))
        update(optimizer)


def put_new(model, gradients):
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient


def copy_over(model, gradients):
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad.copy_(gradient)


@pytest.mark.parametrize(("put", "last_zeroed"), [(put_new, True), (put_new, False)])
def test_gradients_that_are_put_back_are_not_discarded(put, last_zeroed):
    with audit() as report:
        put_back(put, last_zeroed)
    assert "discarded-gradients" not in [f.rule for f in report.findings]
    assert report.errors == []


def test_gradients_that_may_have_been_put_back_in_place_are_a_question():
    with audit() as report:
        put_back(copy_over, last_zeroed=False)
    assert report.errors == []
    assert ("discarded-gradients", "undecided") in found(report)


def test_gradients_that_are_cancelled_put_nothing_back():
    model, optimizer = with_sgd(nn.Sequential(net(), nn.Linear(2, 2)))
    with audit() as report:
        for _ in range(4):
            for x, y in data(3):
                optimizer.zero_grad()
                (F.cross_entropy(model(x), y) / 3).backward()
            model[1].zero_grad()
            optimizer.step()
    assert "discarded-gradients" in report.rules


@pytest.mark.parametrize("hand_over", [False, True])
def test_gradients_that_are_zeroed_every_time_and_never_put_back_stay_an_error(hand_over):
    """The other update, whose gradients are put there by hand, saves only what belongs to it."""
    model, optimizer = with_sgd()
    with audit() as report:
        for _ in range(4):
            for x, y in data(3):
                optimizer.zero_grad()
                (F.cross_entropy(model(x), y) / 3).backward()
            optimizer.step()
        if hand_over:
            optimizer.zero_grad()
            put_new(model, [torch.ones_like(p) for p in model.parameters()])
            optimizer.step()
    assert "discarded-gradients" in report.rules
    (finding,) = [f for f in report.errors if f.rule == "discarded-gradients"]
    assert finding.evidence["discarded"] == 8


# One forward, several backward calls; and parameters that have nothing to do with each other


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


def one_output(losses, n=1, divide=1.0):
    model, optimizer = with_sgd()
    for _ in range(4):
        for x, y in data(n):
            out = model(x)
            for k in range(losses):
                (F.cross_entropy(out, y if k % 2 else 1 - y) * divide).backward(retain_graph=k < losses - 1)
        update(optimizer)


def ensemble(members, n=1, divide=1.0, turns=True):
    """Disjoint models in one optimizer, with a backward call each."""
    models = [net() for _ in range(members)]
    optimizer = Adam([p for model in models for p in model.parameters()], lr=0.01)
    for _ in range(4):
        batches = data(n)
        pairs = [(m, b) for b in batches for m in models] if turns else [(m, b) for m in models for b in batches]
        for model, (x, y) in pairs:
            (F.cross_entropy(model(x), y) * divide).backward()
        update(optimizer)


@pytest.mark.parametrize("run", [
    lambda n, divide: several_losses(True, n, divide),
    lambda n, divide: one_output(3, n, divide),
    lambda n, divide: ensemble(3, n, divide),
    lambda n, divide: ensemble(3, n, divide, turns=False),
])  # fmt: skip
@pytest.mark.parametrize("n", [1, 2])
def test_calls_on_one_forward_or_on_disjoint_parameters_are_one_micro_batch(run, n):
    with audit() as report:
        run(n, 1 / n)
    (lane,) = report.history.lanes
    assert report.history.size(lane) == n
    assert [(f.rule, f.level) for f in report.findings if f.rule == "loss-scale" or f.level == "error"] == []
    if n > 1:
        with audit() as report:
            run(n, 1.0)
        assert report.rules == ["loss-scale"]
        assert report.errors[0].evidence["window"] == n


def test_several_forwards_of_one_model_are_several_micro_batches():
    with audit() as report:
        several_losses(False)
    assert report.history.size("SGD") == 3
    assert found(report) == [("loss-scale", "undecided")]  # three tasks, or three micro-batches


def test_a_state_that_is_carried_on_with_its_graph_brings_other_data():
    cell = nn.RNNCell(3, 4)
    optimizer = SGD(cell.parameters(), lr=0.1)
    with audit() as report:
        for _ in range(3):
            state = torch.zeros(4, 4)
            for x, _ in data(3):
                state = cell(x, state)
                F.mse_loss(state, torch.ones(4, 4)).backward(retain_graph=True)
            update(optimizer)
    assert report.history.size("SGD") == 3


# A script that fails, or is interrupted, inside a window


def loop_that_ends(after, error, clean_up=False, early_zero=False):
    model, optimizer = with_sgd()
    try:
        for i, (x, y) in enumerate(data(12)):
            if early_zero:
                optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / 4).backward()
            if i + 1 == after:
                raise error
            if (i + 1) % 4 == 0:
                update(optimizer)
    finally:
        if clean_up:
            optimizer.zero_grad()


def audited(loop, *args):
    """What the audit of a loop found that may end by an error."""
    with suppress(RuntimeError, KeyboardInterrupt, SystemExit), audit() as report:
        loop(*args)
    return report


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit("no more batches"), SystemExit(3)])
@pytest.mark.parametrize("clean_up", [False, True])
def test_the_window_in_which_a_script_failed_is_not_judged(error, clean_up):
    report = audited(loop_that_ends, 10, error, clean_up)
    assert report.history.updates == {"SGD": 2}
    assert report.findings == []


@pytest.mark.parametrize("ending", [SystemExit(0), SystemExit()])
def test_a_script_that_ends_well_is_judged_to_its_end(ending):
    assert audited(loop_that_ends, 10, ending).rules == ["leftover-gradients"]


def test_an_interrupted_loop_that_zeroes_every_time_is_still_named():
    assert audited(loop_that_ends, 10, KeyboardInterrupt, False, True).rules == ["discarded-gradients"]


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


@pytest.mark.parametrize("own_first", [True, False])
def test_a_generator_whose_step_uses_the_critics_gradients_is_named(own_first):
    with audit() as report:
        gan("after", own_first=own_first)
    assert report.rules == ["foreign-gradients"]
    (finding,) = report.errors
    assert finding.evidence["foreign"] == 1


@pytest.mark.parametrize("own_first", [True, False])
@pytest.mark.parametrize(("zero", "detach"), [("before", False), ("before", True), ("after", True)])
def test_a_generator_that_is_zeroed_before_its_own_loss_is_correct(own_first, zero, detach):
    with audit() as report:
        gan(zero, detach, own_first)
    assert report.errors == []


# Parts of an optimizer's parameters


def partly_zeroed(zero, steps=6):
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in data(steps):
        F.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
        zero(body, head)


def zero_in_place(*modules):
    for module in modules:
        module.zero_grad(set_to_none=False)


@pytest.mark.parametrize("zero", [lambda body, head: head.zero_grad(), lambda body, head: zero_in_place(head)])
def test_a_part_that_is_never_zeroed_is_named(zero):
    with audit() as report:
        partly_zeroed(zero)
    assert report.rules == ["stale-gradients"]
    (finding,) = report.errors
    assert finding.evidence["update"] == 2
    assert (finding.evidence["parameters"], finding.evidence["stale_parameters"]) == (4, 2)
    assert finding.evidence["updates_affected"] == 5
    assert "Linear.weight (4, 3)" in finding.message


@pytest.mark.parametrize("zero", [
    lambda body, head: (head.zero_grad(), body.zero_grad()),
    lambda body, head: (zero_in_place(body), zero_in_place(head)),
    lambda body, head: (head.zero_grad(), zero_in_place(body)),
])  # fmt: skip
def test_parts_that_are_zeroed_one_after_the_other_are_all_zeroed(zero):
    with audit() as report:
        partly_zeroed(zero)
    assert report.findings == []


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_group_that_was_added_later_and_is_not_zeroed_is_named(all_of_it):
    body, head = nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2)
    optimizer = SGD(head.parameters(), lr=0.1)
    listed = list(head.parameters())
    with audit() as report:
        for i, (x, y) in enumerate(data(12)):
            if i == 6:
                body.requires_grad_(True)
                optimizer.add_param_group({"params": body.parameters()})
            (F.cross_entropy(head(body(x)), y) / 2).backward()
            if i % 2:
                optimizer.step()
                for p in [*listed, *(body.parameters() if all_of_it else [])]:
                    p.grad = None
    assert report.rules == ([] if all_of_it else ["stale-gradients"])
    if not all_of_it:
        assert report.errors[0].evidence["update"] == 5
        assert report.history.size("SGD") == 2


def test_gradients_that_are_cancelled_before_the_step_are_no_partial_zeroing():
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    with audit() as report:
        for i, (x, y) in enumerate(data(6)):
            F.cross_entropy(head(body(x)), y).backward()
            if i < 3:
                head.zero_grad()
            update(optimizer)
    assert report.errors == []
