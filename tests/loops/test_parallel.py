"""`train_epoch` and `evaluate` on several ranks equal one process that holds what all ranks hold."""

import on_ranks
import pytest
import torch

from course_utils.ranks import Ranks


@pytest.fixture(scope="module")
def groups():
    with Ranks(2, timeout=60) as two, Ranks(4, timeout=60) as four:
        yield {2: two, 4: four}


@pytest.fixture(params=[2, 4])
def ranks(request, groups):
    return groups[request.param]


@pytest.fixture
def two(groups):
    return groups[2]


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def compare(ours, reference):
    losses, seen, parameters, rate, scored = ours
    their_losses, their_seen, their_parameters, their_rate, their_score = reference
    close = {"rtol": 1e-12, "atol": 1e-12}
    assert losses == pytest.approx(their_losses, rel=1e-12, abs=1e-12)
    assert len(seen) == len(their_seen) > 1
    for mine, theirs in zip(seen, their_seen, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, **close)
    for a, b in zip(parameters, their_parameters, strict=True):
        torch.testing.assert_close(a, b, **close)
    assert rate == their_rate
    assert scored == pytest.approx(their_score, rel=1e-12)


@pytest.mark.parametrize("everything", [False, True], ids=["plain", "scaler, clip and schedule"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_ddp_with_ragged_masked_shards_equals_one_process(ranks, n, name, everything):
    reference = on_ranks.in_one_process(ranks.n, n, name, everything)
    for ours in ranks.run(on_ranks.on_this_rank, "DDP", n, name, everything):
        compare(ours, reference)


@pytest.mark.parametrize("everything", [False, True], ids=["plain", "scaler, clip and schedule"])
@pytest.mark.parametrize("n", [1, 3])
def test_fsdp2_equals_one_process(ranks, n, everything):
    reference = on_ranks.in_one_process(ranks.n, n, "AdamW", everything, equal=True)
    for ours in ranks.run(on_ranks.on_this_rank, "FSDP2", n, "AdamW", everything, True):
        compare(ours, reference)


def test_a_compiled_ddp_model_is_known_as_one(two):
    reference = on_ranks.in_one_process(2, 3, "SGD", False)
    for ours in two.run(on_ranks.on_this_rank, "compiled DDP", 3, "SGD", False):
        compare(ours, reference)


@pytest.mark.parametrize(("n", "micro_batches", "updates"), [(8, 16, 2), (8, 13, 2), (1, 5, 5)])
def test_gradients_travel_once_per_window_and_weights_in_one_small_message(two, n, micro_batches, updates):
    for buckets, others in two.run(on_ranks.messages, n, micro_batches):
        assert len(buckets) == updates  # this model is one bucket
        # each window's weights, the same once more to learn that all ranks are done, and the losses of the epoch
        assert others == [3] * (updates + 1) + [updates]


def test_a_parameter_that_no_rank_used_stays_without_a_gradient(two):
    assert two.run(on_ranks.which_gradients, True) == [[[True, True, True, True, False, False]]] * 2
    assert two.run(on_ranks.which_gradients, False) == [[[True, True, True, True, False, False]]] * 2


def test_fsdp2_with_unequal_numbers_of_micro_batches_is_refused_on_every_rank_before_anything_changes(two):
    for message, unchanged in two.run(on_ranks.uneven_shards):
        assert "5 together" in message
        assert unchanged


def test_buffers_and_a_rank_that_runs_out_do_not_make_ranks_wait(two):
    (losses, parameters), (others, theirs) = two.run(on_ranks.with_batchnorm)
    assert losses == others
    assert len(losses) == 5
    assert all(map(torch.equal, parameters, theirs))
