"""The loops on several ranks equal one process with the data of all; what would not is refused."""

import re
from functools import partial

import pytest
import torch

import on_ranks
from course_utils import evaluate
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


near = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


ENGINES = [  # the engine, on how many ranks, N, the optimizer, and whether with everything else
    ("DDP", 2, 1, "SGD", PLAIN), ("DDP", 2, 5, "AdamW", PLAIN), ("DDP", 2, 3, "SGD", EVERYTHING),
    ("DDP", 4, 3, "AdamW", EVERYTHING), ("compiled DDP", 2, 3, "SGD", PLAIN),
    ("DDP, Python's reducer", 2, 3, "SGD", PLAIN),
    ("FSDP2", 2, 1, "AdamW", PLAIN), ("FSDP2", 2, 3, "AdamW", EVERYTHING), ("HSDP", 4, 3, "AdamW", EVERYTHING),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "world", "n", "name", "everything"), ENGINES)
def test_training_on_ranks_equals_one_process(groups, kind, world, n, name, everything):
    """Under DDP with ragged, masked shards, of which one may be empty."""
    equal = "DDP" not in kind
    reference = on_ranks.trained(kind, n, name, everything, equal, world)
    assert len(reference[1]) > 1
    for ours in groups[world].run(on_ranks.trained, kind, n, name, everything, equal):
        near(ours, reference)


@pytest.mark.parametrize(("kind", "equal"), [("DDP", False), ("FSDP2", True), ("HSDP", True)])
def test_a_loop_of_ones_own_has_the_gradient_of_all_ranks_in_every_window(groups, kind, equal):
    reference = on_ranks.trained(kind, 3, "SGD", False, equal, world=4)
    for ours in groups[4].run(on_ranks.in_a_loop_of_its_own, kind, 3, equal):
        near(ours, reference[:2])


@pytest.mark.parametrize(
    ("kind", "saying"),
    [
        ("not wrapped", "the process group has 2 ranks and the model is not wrapped"),
        ("holds a DDP model", "module '0' is a DistributedDataParallel: wrap the whole model"),
        ("FSDP2 on layers only", "module '0' is a FSDPLinear: wrap the whole model"),
        ("FSDP2 with a parameter left out", r"a parameter of shape \(5,\) that is not"),
        ("FSDP1", "is a FullyShardedDataParallel: .* FSDP1 is not supported"),
        ("static graph", "static_graph=True fails under no_sync"),
    ],
)
def test_what_several_ranks_would_train_wrongly_is_refused_before_anything_changes(two, kind, saying):
    for sentences, unchanged in two.run(on_ranks.refused, kind):
        assert len(sentences) == 2  # of train_epoch and of backward_window
        assert all(re.search(saying, sentence) for sentence in sentences)
        assert unchanged


WAITS = r"of this window doesn't use .*'heads.{}.weight'.* find_unused_parameters=True"


@pytest.mark.parametrize(
    ("kind", "saying"),
    [
        ("the last uses one head", WAITS.format(1)),
        ("the last uses another head on each rank", WAITS.format(0)),
        ("the last leaves out sparse rows on one rank", WAITS.format(1)),
        ("frozen later", WAITS.format(1)),
        ("frozen later on one rank", WAITS.format(1)),
        ("unfrozen later, and other signs", "has not averaged the gradient of 'heads.1.weight', 'heads.1.bias' over"),
        ("unfrozen later", "has not averaged the gradient of 'heads.1.weight', 'heads.1.bias' over .* wrap the model"),
        ("added later", "has not averaged the gradient of 'heads.1.weight', 'heads.1.bias' over .* wrap the model"),
        ("ignored", "has not averaged the gradient of 'body.weight' over .* ignore none that it trains"),
        ("through model.module", "has not averaged the gradient of 'body.weight', .* and 3 more .* not model.module"),
    ],
)
def test_gradients_that_ddp_has_not_exchanged_are_refused_on_every_rank_before_the_step(two, kind, saying):
    for said, unchanged in two.run(on_ranks.not_exchanged, kind):
        assert all(re.search(saying, sentence) for sentence in said)
        assert unchanged or kind == "added later"  # with weights that each rank draws itself


@pytest.mark.parametrize("kind", ["all used", "found unused", "found unused, a head in none"])
def test_a_micro_batch_may_leave_out_parameters_that_ddp_looks_for(two, kind):
    for ours, theirs in two.run(on_ranks.exchanged, kind):
        assert [grad is None for grad in ours] == [grad is None for grad in theirs]
        near(*([grad for grad in grads if grad is not None] for grads in (ours, theirs)))


OPTIONS = ["max_norm", "scheduler", "scaler", "on_update", "learning rate", "inner learning rate", "model"]


@pytest.mark.parametrize("name", OPTIONS)
def test_options_by_which_the_updates_of_ranks_would_differ_are_refused_on_every_rank(two, name):
    for said in two.run(on_ranks.with_unequal_options, name):
        option = name.removeprefix("inner ")
        assert said == f"pass the same {option} on every rank, or the ranks' updates would differ"


@pytest.mark.parametrize(("kind", "world"), [("DDP", 4), ("FSDP2", 4), ("HSDP", 4)])
def test_a_gradient_whose_squares_overflow_is_clipped_as_in_one_process(groups, kind, world):
    torch.set_default_dtype(torch.float32)
    reference = on_ranks.clipped(kind, 1e10, world)
    for ours in groups[world].run(on_ranks.clipped, kind, 1e25):
        near(ours, reference, rtol=1e-5, atol=1e-5)


def test_two_losses_are_divided_by_what_all_ranks_hold_also_where_one_holds_nothing(groups):
    reference = on_ranks.with_two_losses(4)
    for ours in groups[4].run(on_ranks.with_two_losses):
        near(ours, reference)
    for said in groups[2].run(on_ranks.with_more_losses_on_rank_0):
        assert said.startswith("weight(batch) must return equally many counts on every rank")


def test_each_rank_trains_a_model_of_its_own_where_the_model_says_so(two):
    near(two.run(on_ranks.alone), [on_ranks.alone(rank) for rank in range(2)])


def test_ddp_all_reduces_its_gradients_once_a_window(two):
    # Besides: the options, the weights of two windows and of none, two comparisons, the losses.
    assert [counts["all-reduce"] for counts in two.run(on_ranks.collectives, "DDP")] == [2 + 7] * 2


@pytest.mark.parametrize(
    ("call", "options"), [("train_epoch", {}), ("train_epoch", {"hold_back": True}), ("evaluate", {})]
)
def test_nothing_of_a_window_that_an_error_abandoned_is_in_the_next_update_of_fsdp2(two, call, options):
    said = "an error interrupted this FSDP2 model: wrap a new one and load a checkpoint"
    assert two.run(partial(on_ranks.abandoned, call, **options)) == [said] * 2


def test_fsdp2_trains_on_after_an_evaluation(two):
    near(two.run(on_ranks.evaluated_between_epochs), [on_ranks.evaluated_between_epochs(2)] * 2)


@pytest.mark.parametrize(("options", "times"), [({}, 6), ({"hold_back": True}, 2)], ids=str)
def test_fsdp2_reduces_every_micro_batch_unless_it_is_held_back(two, options, times):
    for counts in two.run(partial(on_ranks.collectives, "FSDP2", **options)):
        assert counts["reduce-scatter"] == 2 * times  # of two layers


@pytest.mark.parametrize(
    ("kind", "why"), [("FSDP2", "FSDP2 gathers the"), ("SyncBatchNorm", "SyncBatchNorm exchanges")]
)
def test_unequal_numbers_of_micro_batches_are_refused_on_every_rank_before_a_forward_pass(two, kind, why):
    for message, began in two.run(on_ranks.uneven, kind):
        assert message.startswith(why)
        assert "5 together" in message
        assert not began


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_an_evaluation_is_that_of_the_checkpoint_of_rank_0_and_leaves_each_rank_its_statistics(two, kind):
    batches = sum(on_ranks.shards(2, equal=True), [])  # noqa: RUF017
    checkpoint = evaluate(on_ranks.normalised(running_mean=0), batches, on_ranks.masked_mse, on_ranks.tokens)
    for rank, (score, statistics) in enumerate(two.run(on_ranks.evaluated_with_statistics_of_its_own, kind)):
        assert score == pytest.approx(checkpoint, rel=1e-12)
        assert statistics == [rank] * on_ranks.WIDTH


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_each_update_is_told_with_the_loss_and_the_norm_of_all_ranks(two, kind):
    for losses, norms, told in two.run(on_ranks.updates_told, kind):
        assert [update[2] for update in told] == pytest.approx(losses, rel=1e-12)
        assert [update[3] for update in told] == pytest.approx(norms, rel=1e-12)


def test_buffers_and_a_rank_that_runs_out_do_not_make_ranks_wait(two):
    (losses, parameters, scored), (others, theirs, score) = two.run(on_ranks.with_batchnorm)
    assert losses == others
    assert scored == score > 0
    assert len(losses) == 5
    assert all(map(torch.equal, parameters, theirs))
