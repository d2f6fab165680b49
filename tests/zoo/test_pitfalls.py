"""The table of pitfalls: each row's number tells the buggy loop from its fixed twin, and is what the zoo says it is."""

import warnings

import pytest
import torch

from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS, watch

MEASURED = {  # of the buggy loop and of its fixed twin
    "never-zeroed": (12, 1),
    "zeroed-before-the-step": (0, 1),
    "zeroed-in-every-micro-batch": (1, 4),
    "never-divided": (4, 1),
    "step-at-batch-zero": (1, 4),
    "tail-never-used": (2, 0),
    "tail-divided-by-n": (0.25, 1),
    "mean-of-means": (44 / 8, 1),
    "clipped-in-every-micro-batch": (4, 1),
    "clipped-before-unscale": (0.000977, 1),  # 1 / 1024
    "unscaled-in-every-micro-batch": (4, 1),
    "warmup-in-micro-batches": (1, 4),
    "one-backward-per-window": (4, 1),
}


@pytest.mark.parametrize("pitfall", PITFALLS, ids=lambda pitfall: pitfall.specimen)
def test_the_number_of_a_row_tells_the_buggy_loop_from_the_fixed_one(pitfall):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pitfall.measured() == MEASURED[pitfall.specimen]
    assert all(pitfall.row())


def test_each_row_has_a_loop_of_its_own():
    assert [pitfall.specimen for pitfall in PITFALLS] == list(MEASURED)


@pytest.mark.parametrize("name", ["mean-of-means", "unscaled-in-every-micro-batch"])
def test_a_loop_logs_the_same_losses_when_it_is_watched_and_nothing_is_left_behind(name):
    unscale, losses = torch.amp.GradScaler.unscale_, []
    watch(lambda: losses.extend(ZOO[name].buggy()))
    assert losses == ZOO[name].buggy()
    assert torch.amp.GradScaler.unscale_ is unscale


def test_the_factors_of_a_window_are_what_its_losses_were_multiplied_by():
    run = watch(ZOO["mean-of-means"].fixed)
    assert [term.count for update in range(4) for term in run.losses(update)] == [8, 44] * 8
    assert [term.coefficient for term in run.losses(0)] == pytest.approx([8 / 104, 44 / 104] * 2, rel=1e-12)
