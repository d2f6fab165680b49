"""The judge "forgotten": right answers pass in whatever style, wrong ones are rejected by the name of their bug."""

import math
from itertools import accumulate

import pytest
import torch
from mutations import mutants
from torch import nn

from course_utils.practice.exercises import judge


def steps_without_zero(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    for gradient in gradients:
        held += gradient
        w -= lr * held
        positions.append(w)
    return positions


def by_two_running_sums(gradients, lr):
    return [-lr * total for total in accumulate(accumulate(gradients))]


def by_a_real_loop(gradients, lr):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr)
    positions = []
    for gradient in gradients:
        (gradient * w).backward()
        optimizer.step()
        positions.append(w.detach().clone())
    return positions


def by_momentum(gradients, lr):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr, momentum=1.0)
    for gradient in gradients:
        optimizer.zero_grad()
        (gradient * w).backward()
        optimizer.step()
        yield w.item()


def as_a_tensor(gradients, lr):
    return -lr * torch.tensor(gradients, dtype=torch.float64).cumsum(0).cumsum(0)


@pytest.mark.parametrize("right", [steps_without_zero, by_two_running_sums, by_a_real_loop, by_momentum, as_a_tensor])
def test_right_answers_pass(right):
    verdict = judge("forgotten", right)
    assert verdict.passed, verdict.message


def with_momentum(momentum):
    def decays(gradients, lr):
        w, held, positions = 0.0, 0.0, []
        for gradient in gradients:
            held = momentum * held + gradient
            w -= lr * held
            positions.append(w)
        return positions

    return decays


def mean_of_all(gradients, lr):
    w, positions = 0.0, []
    for count, held in enumerate(accumulate(gradients), start=1):
        w -= lr * held / count
        positions.append(w)
    return positions


def last_two(gradients, lr):
    pairs = zip([0.0, *gradients], gradients, strict=False)
    return list(accumulate(-lr * (before + now) for before, now in pairs))


def steps_before_backward(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    for gradient in gradients:
        w -= lr * held
        positions.append(w)
        held += gradient
    return positions


def one_tensor_many_times(gradients, lr):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr)
    positions = []
    for gradient in gradients:
        (gradient * w).backward()
        optimizer.step()
        positions.append(w.detach())
    return positions


WRONG = {
    "zeroed": [
        lambda gradients, lr: list(accumulate(-lr * gradient for gradient in gradients)),
        lambda gradients, lr: [-lr * held for held in accumulate(gradients)],  # the updates, not the positions
    ],
    "decays": [with_momentum(0.5), with_momentum(0.9), with_momentum(0.99), mean_of_all, last_two],
    "uphill": [lambda gradients, lr: [lr * total for total in accumulate(accumulate(gradients))]],
    "off-by-one": [
        lambda gradients, lr: [0.0, *steps_without_zero(gradients, lr)],
        lambda gradients, lr: steps_without_zero(gradients, lr)[:-1],
        lambda gradients, lr: steps_without_zero(gradients, lr)[1:],
        steps_before_backward,
    ],
    "last-only": [
        one_tensor_many_times,
        lambda gradients, lr: [steps_without_zero(gradients, lr)[-1] for _ in gradients],
    ],
    "not-attempted": [lambda *_: None, lambda *_: ..., lambda *_: []],
    "wrong-type": [
        lambda gradients, lr: -lr * sum(gradients),
        lambda *_: torch.tensor(1.0),
        lambda *_: "positions",
        lambda *_: [1.0, "x"],
        lambda *_: 1j,
    ],
    "wrong-value": [
        lambda gradients, lr: [math.nan] * len(gradients),
        lambda gradients, lr: [-total for total in accumulate(accumulate(gradients))],  # without the learning rate
        with_momentum(1.1),
        with_momentum(-1.0),
        lambda gradients, lr: iter(lambda: 0.0, 1.0),  # never ends
    ],
    "raises": [lambda: [], lambda gradients, lr: gradients[99], lambda gradients, lr: gradients.clear() or 1 / 0],
    "not-a-function": [None, 3],
}


@pytest.mark.parametrize("bug", WRONG)
def test_wrong_answers_are_rejected_by_the_name_of_their_bug(bug):
    for wrong in WRONG[bug]:
        verdict = judge("forgotten", wrong)
        assert verdict.bug == bug, verdict.message
        assert verdict.message


def test_the_message_shows_the_case_and_what_an_old_gradient_does():
    message = judge("forgotten", with_momentum(0.5)).message
    assert message.startswith("fresh gradients [2.0, -1.0, 0.5, -3.0, 4.0], lr = 0.25: expected [-0.5, -0.75,")
    assert "it moves by [1.0, 0.5, 0.25, 0.125, 0.062]" in message


@pytest.mark.mutations
def test_mutations_of_the_reference_are_rejected():
    passed = []
    for change, mutant in mutants(steps_without_zero):
        if judge("forgotten", mutant).passed:
            passed.append(change)
    assert not passed, "\n\n".join(passed)
