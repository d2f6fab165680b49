"""The loops that no rule was written with: the correct forms are correct, and each edit breaks what it edits."""

import math

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils.zoo import unseen
from course_utils.zoo.unseen import EDITS, FORMS, UnseenLoop, unseen_loops

pytestmark = pytest.mark.filterwarnings("ignore:Detected call")
SIZES = {"equal": [6] * 7, "ragged": [2, 5, 9, 4, 3, 8, 6]}


def loop_of(form, loss="mse", sizes="equal", planted=(), limit=100.0, optimizer="SGD"):
    return UnseenLoop(7, tuple(planted), form, loss, optimizer, 3, SIZES[sizes], limit, convolution=False)


def updates(loop):
    """The learning rate and the gradients at each step."""
    seen = []

    def note(optimizer, *_):
        group = optimizer.param_groups[0]
        seen.append((group["lr"], [None if p.grad is None else p.grad.clone() for p in group["params"]]))

    handle = register_optimizer_step_pre_hook(note)
    try:
        loop()
    finally:
        handle.remove()
    return seen


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("loss", "sizes"), [("tokens, masked by hand", "ragged"), ("a dot product", "equal")])
@pytest.mark.parametrize("limit", [100.0, 0.05])
def test_each_update_of_a_correct_form_has_the_gradient_of_one_large_batch(form, loss, sizes, limit, monkeypatch):
    if (form, sizes) == ("count", "ragged"):
        sizes = "equal"  # it divides by a count of micro-batches
    kept, make = [], unseen._task

    def keep(*arguments):
        kept.append(make(*arguments))
        return kept[-1]

    def compare(optimizer, *_):
        (task,) = kept
        window = [task.batches[k] for k in windows[len(compared)]]
        large = tuple(torch.cat(parts) for parts in zip(*window, strict=True))
        expected = torch.autograd.grad(task.loss(large), list(task.model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in expected))
        found = [p.grad for p in task.model.parameters()]
        factor = min(1.0, limit / (norm + 1e-6))
        compared.append(all(torch.allclose(f, factor * e, atol=1e-12) for f, e in zip(found, expected, strict=True)))

    windows, compared = [range(3), range(3, 6), range(6, 7)] * 2, []
    monkeypatch.setattr(unseen, "_task", keep)
    handle = register_optimizer_step_pre_hook(compare)
    try:
        loop_of(form, loss, sizes, limit=limit)()
    finally:
        handle.remove()
    assert compared == [True] * 6


def same(left, right):
    if len(left) != len(right):
        return False
    return all(
        one == other
        and all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(g, h, strict=True))
        for (one, g), (other, h) in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.form}, {edit.kind}")
def test_an_edit_changes_what_the_steps_read(edit):
    sizes = "ragged" if edit.needs == "ragged" else "equal"
    changed = [
        not same(updates(loop_of(edit.form, sizes=sizes, limit=limit)),
                 updates(loop_of(edit.form, sizes=sizes, planted=[edit], limit=limit)))
        for limit in (100.0, 0.05)
    ]  # fmt: skip
    assert any(changed) == (edit.kind != "a scaler in each epoch")  # which matters when one overflows


def test_loops_are_drawn_from_a_seed_and_are_what_was_asked_for():
    loops = unseen_loops(correct=8, buggy=2 * len(EDITS), seed=3)
    assert loops == unseen_loops(correct=8, buggy=2 * len(EDITS), seed=3)
    assert loops != unseen_loops(correct=8, buggy=2 * len(EDITS), seed=4)
    assert [len(loop.planted) for loop in loops[:8]] == [0] * 8
    assert {bug for loop in loops for bug in loop.planted} == set(EDITS)
    assert {len(loop.planted) for loop in loops[8:]} == {1, 2}
    for loop in loops:
        needs = {bug.needs for bug in loop.planted}
        assert needs.isdisjoint({"tail"}) or len(loop.sizes) % loop.n
        assert needs.isdisjoint({"ragged"}) or len(set(loop.sizes)) > 1
        assert needs.isdisjoint({"equal"}) or len(set(loop.sizes)) == 1


def test_a_loop_repeats_itself_and_leaves_the_random_state():
    state = torch.get_rng_state()
    loop = unseen_loops(correct=1, buggy=0, seed=1)[0]
    assert same(updates(loop), updates(loop))
    assert torch.equal(torch.get_rng_state(), state)
