"""The judge of notebook 08: right answers pass in whatever style, wrong ones are rejected by the name of their bug."""

import math
from functools import cache

import pytest
import torch
from mutations import assert_mutations_are_judged_by_their_results
from torch import nn
from torch.nn.utils import clip_grad_norm_

from course_utils import mlp, train_epoch, windows
from course_utils.practice.exercises import judge


def by_windows(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def by_modulo(model, batches, loss_fn, optimizer, n, max_norm):
    tail = len(batches) % n
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        held = tail if i >= len(batches) - tail else n
        loss = loss_fn(model, batch) / held
        loss.backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def by_the_helper(model, batches, loss_fn, optimizer, n, max_norm):
    train_epoch(model, batches, loss_fn, optimizer, n, len, max_norm=max_norm)


def by_hand(model, batches, loss_fn, optimizer, n, max_norm):
    parameters = list(model.parameters())
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        model.zero_grad()
        for batch in window:
            loss_fn(model, batch).backward()
        for p in parameters:
            p.grad /= len(window)
        norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
        if norm > max_norm:
            for p in parameters:
                p.grad *= max_norm / norm
        optimizer.step()


def collects_the_losses(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        torch.stack([loss_fn(model, batch) for batch in window]).mean().backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


RIGHT = [by_windows, by_modulo, by_the_helper, by_hand, collects_the_losses]


@pytest.mark.parametrize("right", RIGHT)
def test_right_answers_pass(right):
    verdict = judge("two_bugs", right)
    assert verdict.passed, verdict.message


def patient(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def only_the_clip_is_mended(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def only_the_tail_is_mended(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
            clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def drops_the_tail(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()


def window(update):
    def answer(model, batches, loss_fn, optimizer, n, max_norm):
        for held in windows(batches, n):
            optimizer.zero_grad()
            update(model, held, loss_fn, optimizer, max_norm)

    return answer


def backward(model, held, loss_fn, factor=None):
    for batch in held:
        (loss_fn(model, batch) * (factor or 1 / len(held))).backward()


@window
def clips_before_backward(model, held, loss_fn, optimizer, max_norm):
    clip_grad_norm_(model.parameters(), max_norm)
    backward(model, held, loss_fn)
    optimizer.step()


@window
def clips_after_the_step(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    optimizer.step()
    clip_grad_norm_(model.parameters(), max_norm)


@window
def never_clips(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    optimizer.step()


@window
def clips_to_another_norm(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    clip_grad_norm_(model.parameters(), max_norm / 2)
    optimizer.step()


@window
def clips_values(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    nn.utils.clip_grad_value_(model.parameters(), max_norm)
    optimizer.step()


@window
def clips_each_parameter(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    for p in model.parameters():
        clip_grad_norm_([p], max_norm)
    optimizer.step()


@window
def does_not_divide(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn, factor=1)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def zeroes_inside(model, held, loss_fn, optimizer, max_norm):
    for batch in held:
        optimizer.zero_grad()
        (loss_fn(model, batch) / len(held)).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def zeroes_before_the_step(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.zero_grad()
    optimizer.step()


def never_zeroes(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):
        backward(model, held, loss_fn)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def starts_dirty(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):
        backward(model, held, loss_fn)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()


def steps_each_time(model, batches, loss_fn, optimizer, n, max_norm):
    by_windows(model, batches, loss_fn, optimizer, 1, max_norm)


def fewer_updates_where_the_limit_is_tight(model, batches, loss_fn, optimizer, n, max_norm):
    by_windows(model, batches, loss_fn, optimizer, n if max_norm > 1 else 2 * n, max_norm)


@window
def sends_the_running_total_backward(model, held, loss_fn, optimizer, max_norm):
    total = 0.0
    for batch in held:
        total = total + loss_fn(model, batch) / len(held)
        total.backward(retain_graph=True)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


WRONG = {
    "loss-scale": [patient, only_the_clip_is_mended, does_not_divide, sends_the_running_total_backward],
    "clip-timing": [
        only_the_tail_is_mended,
        clips_before_backward,
        clips_after_the_step,
        never_clips,
        clips_to_another_norm,
        clips_values,
    ],
    "wrong-value": [clips_each_parameter],
    "leftover-gradients": [drops_the_tail],
    "discarded-gradients": [zeroes_inside, zeroes_before_the_step],
    "stale-gradients": [never_zeroes, starts_dirty],
    "irregular-window": [steps_each_time, fewer_updates_where_the_limit_is_tight],
    "not-attempted": [lambda *_: None],
}


@pytest.mark.parametrize("bug", WRONG)
def test_wrong_answers_are_rejected_by_the_name_of_their_bug(bug):
    for wrong in WRONG[bug]:
        verdict = judge("two_bugs", wrong)
        assert verdict.bug == bug, f"{wrong.__name__}: {verdict}"
        assert verdict.message


def test_the_messages_give_the_case_and_the_evidence():
    message = judge("two_bugs", only_the_clip_is_mended).message
    assert "10 micro-batches, N = 4" in message
    assert "of a short window, is 0.5 times what it should be" in message
    message = judge("two_bugs", sends_the_running_total_backward).message
    assert "in update 1 the samples of its micro-batches count [4.0, 3.0, 2.0, 1.0] times what they should" in message
    message = judge("two_bugs", only_the_tail_is_mended).message
    assert "max_norm = 0.1: the items of update 1 count" in message
    message = judge("two_bugs", never_clips).message
    assert "a gradient of norm 0.354 reached the step" in message


JUNK = [  # beside what test_exercises.py tries on every exercise
    lambda *a: a[0].requires_grad_(False),
    lambda *a: a[3].step(),
]


def test_junk_is_rejected_never_raises_and_leaves_torch_as_it_was():
    before = torch.get_rng_state()
    for answer in JUNK:
        assert judge("two_bugs", answer).bug, answer
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before)


# Mutations. Whether one changes a result is found out here without the judge: on random data, against the reference.


def outcome(answer):
    values = []
    for n, count, max_norm, dirty in ((2, 6, 0.2, 1), (4, 7, 50.0, 0), (4, 6, 0.3, 0), (1, 3, 0.2, 1), (9, 2, 50.0, 0)):
        torch.manual_seed(n)
        model = mlp(3, 4, 2).double()
        batches = [torch.randn(3, 5, dtype=torch.float64) for _ in range(count)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
        for p in model.parameters():
            p.grad = torch.ones_like(p) if dirty else None

        def mse(model, batch):
            return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])

        try:
            for _ in range(2):
                answer(model, batches, mse, optimizer, n, max_norm)
        except Exception as error:
            return type(error).__name__
        values += torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return values


right_outcome = cache(outcome)


def changes_a_result(mutant, reference):
    got, want = outcome(mutant), right_outcome(reference)
    if isinstance(got, str):
        return True
    return not all(math.isclose(g, w, rel_tol=1e-5, abs_tol=1e-6) for g, w in zip(got, want, strict=True))


@pytest.mark.mutations
@pytest.mark.parametrize("reference", [by_windows, by_modulo])
def test_a_mutation_is_rejected_if_and_only_if_it_changes_a_result(reference):
    assert_mutations_are_judged_by_their_results(
        "two_bugs", reference, lambda mutant: changes_a_result(mutant, reference)
    )
