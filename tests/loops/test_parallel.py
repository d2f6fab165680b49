"""The loops on several ranks equal one process that holds what all ranks hold; what would not is refused."""

import re

import pytest
import torch

import on_ranks
from course_utils import evaluate, train_epoch
from course_utils.ranks import Ranks

PLAIN, EVERYTHING = False, True  # without, or with a scaler, clipping and a schedule


@pytest.fixture(scope="module")
def groups():
    with Ranks(2, timeout=60) as two, Ranks(4, timeout=60) as four:
        yield {2: two, 4: four}


@pytest.fixture
def two(groups):
    return groups[2]


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)


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


ENGINES = [  # the engine, on how many ranks, N, the optimizer, and whether with everything else
    ("DDP", 2, 1, "SGD", PLAIN), ("DDP", 2, 5, "AdamW", PLAIN), ("DDP", 2, 3, "SGD", EVERYTHING),
    ("DDP", 4, 3, "AdamW", EVERYTHING), ("compiled DDP", 2, 3, "SGD", PLAIN),
    ("FSDP2", 2, 1, "AdamW", PLAIN), ("FSDP2", 2, 3, "AdamW", EVERYTHING), ("HSDP", 4, 3, "AdamW", EVERYTHING),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "world", "n", "name", "everything"), ENGINES)
def test_training_on_ranks_equals_one_process(groups, kind, world, n, name, everything):
    """Under DDP with ragged, masked shards, of which one may be empty."""
    equal = "DDP" not in kind
    reference = on_ranks.in_one_process(world, n, name, everything, equal)
    for ours in groups[world].run(on_ranks.on_this_rank, kind, n, name, everything, equal):
        compare(ours, reference)


@pytest.mark.parametrize(("kind", "equal"), [("DDP", False), ("FSDP2", True), ("HSDP", True)])
def test_a_loop_of_ones_own_has_the_gradient_of_all_ranks_in_every_window(groups, kind, equal):
    reference = on_ranks.in_one_process(4, 3, "SGD", False, equal)
    for losses, seen in groups[4].run(on_ranks.in_a_loop_of_its_own, kind, 3, equal):
        assert losses == pytest.approx(reference[0], rel=1e-12)
        assert len(seen) == len(reference[1]) > 1
        for ours, theirs in zip(seen, reference[1], strict=True):
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "saying"),
    [
        ("not wrapped", "the process group has 2 ranks and the model is not wrapped"),
        ("FSDP2 with a parameter left out", r"a parameter of shape \(5,\) that is not"),
        ("FSDP1", r"use .* fully_shard\(model\) on the whole model \(FSDP1 is not supported"),
        ("DDP with a parameter left out", r"DDP ignores \['0.bias'\]"),
        ("static graph", "static_graph=True cannot accumulate"),
    ],
)
def test_what_several_ranks_would_train_wrongly_is_refused_before_anything_changes(two, kind, saying):
    for sentences, unchanged in two.run(on_ranks.refused, kind):
        assert len(sentences) == 2  # of train_epoch and of backward_window
        for sentence in sentences:
            assert re.search(saying, sentence)
        assert unchanged


def test_each_rank_trains_a_model_of_its_own_where_the_model_says_so(two):
    for rank, (losses, parameters, scored) in enumerate(two.run(on_ranks.trained, "a model per rank", 3)):
        model = on_ranks.new_model()
        batches = on_ranks.shards(2)[rank]
        optimizer = on_ranks.optimizer_of("SGD", model.parameters())
        assert losses == train_epoch(model, batches, on_ranks.masked_mse, optimizer, 3, on_ranks.tokens)
        assert all(map(torch.equal, parameters, model.parameters()))
        assert scored == evaluate(model, batches, on_ranks.masked_mse, on_ranks.tokens)


def test_ddp_all_reduces_its_gradients_once_a_window(two):
    # besides: each window's weights, the same once more to learn that all are done, the losses
    assert [counts["all-reduce"] for counts in two.run(on_ranks.collectives, "DDP")] == [2 + 4] * 2


def test_fsdp2_trains_on_after_an_evaluation_and_not_after_an_error(two):
    losses, scores = on_ranks.trained_between_evaluations()
    for ours, scored, refusal in two.run(on_ranks.evaluated_between_epochs):
        assert ours == pytest.approx(losses, rel=1e-12)
        assert scored == pytest.approx(scores, rel=1e-12)
        assert refusal.startswith("an error interrupted this FSDP2 model")


def test_fsdp2_reduces_every_micro_batch(two):
    for counts in two.run(on_ranks.collectives, "FSDP2"):
        assert counts["reduce-scatter"] == 2 * 6  # of two layers


def test_sync_batchnorm_with_unequal_numbers_of_micro_batches_is_refused_on_every_rank(two):
    for message, began in two.run(on_ranks.uneven_with_sync_batchnorm):
        assert message.startswith("SyncBatchNorm exchanges statistics in every forward pass")
        assert "5 together" in message
        assert not began


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_each_update_is_told_with_the_loss_and_the_norm_of_all_ranks(two, kind):
    for losses, norms, told in two.run(on_ranks.updates_told, kind, True):
        assert [update[2] for update in told] == pytest.approx(losses, rel=1e-12)
        assert [update[3] for update in told] == pytest.approx(norms, rel=1e-12)
    for message in two.run(on_ranks.updates_told, kind, False):
        assert message.startswith("on_update must be passed on every rank or on none")


def test_fsdp2_with_unequal_numbers_of_micro_batches_is_refused_on_every_rank_before_anything_changes(two):
    for message, unchanged in two.run(on_ranks.uneven_shards):
        assert "5 together" in message
        assert unchanged


def test_buffers_and_a_rank_that_runs_out_do_not_make_ranks_wait(two):
    (losses, parameters, scored), (others, theirs, score) = two.run(on_ranks.with_batchnorm)
    assert losses == others
    assert scored == score > 0
    assert len(losses) == 5
    assert all(map(torch.equal, parameters, theirs))
