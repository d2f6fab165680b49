"""What hooks on a weight are given, and when they run."""

import pytest
import torch
from torch import nn

from course_utils import HookLog


def weight(start=1.0):
    return nn.Parameter(torch.tensor(start))


def test_each_kind_of_hook_is_noted_with_what_it_saw():
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.1)
    log = HookLog(w, optimizer)
    for slope in (1.0, 2.0):
        (slope * w).backward()
    optimizer.step()
    assert (log.pieces, log.before, log.sums, log.steps) == ([1.0, 2.0], [None, 1.0], [1.0, 3.0], [3.0])


def test_norms_stand_at_the_piece_that_had_arrived_last():
    w = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([w], lr=0.1)
    log = HookLog(w, optimizer)
    for factor in (1.0, 2.0):
        (factor * (3 * w[0] + 4 * w[1])).backward()
    optimizer.step()
    assert log.norms() == {
        "tensor hook": {1: 5.0, 2: 10.0},
        "post-accumulate hook": {1: 5.0, 2: 15.0},
        "step hook": {2: 15.0},
    }


def test_what_was_noted_can_be_forgotten():
    w = weight()
    log = HookLog(w)
    w.backward()
    log.clear()
    w.backward()
    assert (log.pieces, log.sums, log.norms()["tensor hook"]) == ([1.0], [2.0], {1: 1.0})


def test_the_step_hook_of_lbfgs_runs_before_its_closure():
    w = weight()
    optimizer = torch.optim.LBFGS([w])
    log = HookLog(w, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = w.square()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert log.steps == [None]
    assert log.pieces


@pytest.mark.parametrize("unscale", [False, True])
def test_a_fused_optimizers_hook_sees_the_scale_unless_it_is_taken_out_before(unscale):
    w = weight()
    optimizer = torch.optim.SGD([w], lr=1.0, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    log = HookLog(w, optimizer)
    scaler.scale(2 * w).backward()
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert log.steps == [2.0 if unscale else 8.0]
    assert w.item() == -1.0
