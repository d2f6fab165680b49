"""The judge "weighted_window": right answers pass in whatever style, wrong ones are rejected by their bug's name."""

import copy
import math

import pytest
import torch
from mutations import assert_mutations_are_judged_by_their_results
from torch import nn
from torch.nn import functional as F

from course_utils import mlp, train_epoch
from course_utils.practice.exercises import judge


def weighted_window(model, window, class_weights, optimizer, max_norm):
    optimizer.zero_grad()
    total = sum(class_weights[y].sum() for _, y in window)
    for x, y in window:
        loss = F.cross_entropy(model(x), y, weight=class_weights)
        (loss * class_weights[y].sum() / total).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()


def with_sums_and_one_division(model, window, class_weights, optimizer, max_norm):
    model.zero_grad()
    for x, y in window:
        F.cross_entropy(model(x), y, weight=class_weights, reduction="sum").backward()
    total = float(sum(class_weights[y].sum() for _, y in window))
    for p in model.parameters():
        p.grad /= total
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


def with_the_helper(model, window, class_weights, optimizer, max_norm):
    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], weight=class_weights)

    train_epoch(model, window, loss_fn, optimizer, len(window), lambda b: class_weights[b[1]].sum(), max_norm=max_norm)


def by_hand_without_backward(model, window, class_weights, optimizer, max_norm):
    parameters, sums, total = list(model.parameters()), None, 0.0
    for x, y in window:
        each = F.cross_entropy(model(x), y, reduction="none") * class_weights[y]
        grads = torch.autograd.grad(each.sum(), parameters)
        sums = grads if sums is None else [s + g for s, g in zip(sums, grads, strict=True)]
        total += class_weights[y].sum()
    norm = math.sqrt(sum(float((s / total).square().sum()) for s in sums))
    for p, s in zip(parameters, sums, strict=True):
        p.grad = s / total * min(1.0, max_norm / norm)
    optimizer.step()


@pytest.mark.parametrize(
    "right", [weighted_window, with_sums_and_one_division, with_the_helper, by_hand_without_backward]
)
def test_right_answers_pass(right):
    verdict = judge("weighted_window", right)
    assert verdict.passed, verdict.message


def variant(
    share=None,
    clip="once",
    zero_before=True,
    zero_after=True,
    zero_in_loop=False,
    weighted=True,
    step="once",
    at_once=False,
):
    """The right loop with one thing done another way."""

    def answer(model, window, class_weights, optimizer, max_norm):
        if zero_before:
            optimizer.zero_grad()
        total, loss_of_all = sum(class_weights[y].sum() for _, y in window), 0.0
        for x, y in window:
            if zero_in_loop:
                optimizer.zero_grad()
            if clip == "before" and any(p.grad is not None for p in model.parameters()):
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            loss = F.cross_entropy(model(x), y, weight=class_weights if weighted else None)
            part = class_weights[y].sum() / total if share is None else share(window, class_weights, y)
            loss_of_all = loss_of_all + loss * part
            if not at_once:
                (loss * part).backward()
            if clip == "each":
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if step == "each":
                optimizer.step()
        if at_once:
            loss_of_all.backward()
        if zero_in_loop == "after":
            optimizer.zero_grad()
        if clip in ("once", "each"):
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if step == "once":
            optimizer.step()
        if clip == "after the step":
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if zero_after:
            optimizer.zero_grad()

    return answer


def zeroes_before_the_step(model, window, class_weights, optimizer, max_norm):
    for x, y in window:
        F.cross_entropy(model(x), y, weight=class_weights).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def clips_each_by_itself(model, window, class_weights, optimizer, max_norm):
    total, sums = sum(class_weights[y].sum() for _, y in window), [0.0 for _ in model.parameters()]
    for x, y in window:
        model.zero_grad()
        (F.cross_entropy(model(x), y, weight=class_weights) * class_weights[y].sum() / total).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        sums = [s + p.grad for s, p in zip(sums, model.parameters(), strict=True)]
    for p, s in zip(model.parameters(), sums, strict=True):
        p.grad = s
    optimizer.step()
    optimizer.zero_grad()


def items(window):
    return sum(len(y) for _, y in window)


WRONG = {
    "token-weights": [
        variant(share=lambda window, weights, y: len(y) / items(window)),
        variant(share=lambda window, weights, y: 1 / len(window)),
        variant(share=lambda window, weights, y: 1.0),
    ],
    "loss-scale": [
        variant(share=lambda window, weights, y: weights[y].sum()),
        variant(share=lambda window, weights, y: weights[y].sum() / items(window)),
        variant(
            share=lambda window, weights, y: weights[y].sum() / sum(weights[t].sum() for _, t in window) / len(window)
        ),
    ],
    "clip-timing": [
        variant(clip="each"),
        variant(clip="before"),
        variant(clip="never"),
        variant(clip="after the step"),
        clips_each_by_itself,
    ],
    "stale-gradients": [variant(zero_before=False), variant(zero_before=False, zero_after=False)],
    "discarded-gradients": [variant(zero_in_loop=True), variant(zero_in_loop="after"), zeroes_before_the_step],
    "irregular-window": [variant(step="each")],
    "leftover-gradients": [variant(step="never")],
    "held-graphs": [variant(at_once=True)],
    "missing-class-weights": [variant(weighted=False, share=lambda window, weights, y: len(y) / items(window))],
    "empty-step": [lambda model, window, class_weights, optimizer, max_norm: optimizer.step()],
    "not-attempted": [
        lambda *_: None,
        lambda model, window, *_: [model(x) for x, _ in window],
    ],
    "raises": [
        lambda: None,
        lambda *_: 1 / 0,
        lambda model, window, *_: window[99],
        lambda model, window, *_: model(window[0][1]),
        lambda model, *_: exit(),
    ],
    "not-a-function": [None, 3, "weighted_window"],
    "wrong-value": [
        lambda model, window, weights, optimizer, _: (
            [p.data.fill_(math.nan) for p in model.parameters()] and fit(model, window, optimizer)
        ),
        lambda model, window, weights, optimizer, _: model(window[0][0]).sum().backward() or optimizer.step(),
    ],
}


def fit(model, window, optimizer):
    F.cross_entropy(model(window[0][0]), window[0][1]).backward()
    optimizer.step()


@pytest.mark.parametrize("bug", WRONG)
def test_wrong_answers_are_rejected_by_the_name_of_their_bug(bug):
    for wrong in WRONG[bug]:
        verdict = judge("weighted_window", wrong)
        assert verdict.bug == bug, verdict.message
        assert verdict.message


def test_the_message_shows_the_case_and_the_shares():
    message = judge("weighted_window", WRONG["token-weights"][0]).message
    assert message.startswith(
        "micro-batches of [4, 4, 4, 4] samples, no clip at work: the micro-batches count by their"
    )
    assert "[0.25, 0.25, 0.25, 0.25], and should count by what" in message


def test_the_judge_leaves_the_global_state_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    judge("weighted_window", weighted_window)
    assert torch.equal(torch.rand(3), expected)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert judge("weighted_window", weighted_window).passed
    finally:
        torch.set_default_dtype(before)


def changes_a_result(mutant) -> bool:
    """Does it train other weights than the reference, over windows that the judge does not know?"""
    torch.manual_seed(3)
    weights = torch.tensor([2.0, 7.0, 0.3], dtype=torch.float64)
    start = mlp(4, 3, 3).double()
    windows = []
    for sizes in ((3,), (2, 5, 1), (3, 3), (1, 1, 6, 2)):
        windows.append([(torch.randn(n, 4, dtype=torch.float64), torch.randint(3, (n,))) for n in sizes])
    for max_norm in (1e9, 0.1):
        ends = []
        for loop in (weighted_window, mutant):
            model = copy.deepcopy(start)
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.7)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
            try:
                for window in windows:
                    loop(model, window, weights, optimizer, max_norm)
            except Exception:
                return True
            ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        if not torch.allclose(*ends, rtol=0, atol=1e-5):
            return True
    return False


@pytest.mark.mutations
def test_a_mutation_is_rejected_if_and_only_if_it_changes_a_result():
    assert_mutations_are_judged_by_their_results("weighted_window", weighted_window, changes_a_result, at_least=20)
