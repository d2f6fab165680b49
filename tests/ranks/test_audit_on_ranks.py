"""Every engine for several ranks under the auditor: the correct loop has no finding, and each wrong one its own."""

import pytest

import audited_on_ranks as loops
import exhaustive
from course_utils.ranks import Ranks

ERRORS = {
    "right": [],
    "every": [("advice", "sync-cadence")],
    "never": [("error", "sync-cadence")],
    "first": [("error", "sync-cadence")],
    "undivided": [("error", "loss-scale")],
    "never zeroed": [("error", "stale-gradients")],
}
SHARDS = {"every": []}  # a loop that reduces each time holds shards, and not whole gradients
WINDOWS = [loops.N] * loops.UPDATES


@pytest.fixture(scope="module")
def two():
    with Ranks(2, timeout=100) as group:
        yield group


def expect(results, kinds=ERRORS, but=()):
    for result in results:
        assert result == {kind: ({**ERRORS, **dict(but)}[kind], WINDOWS) for kind in kinds}


@pytest.mark.parametrize(
    "engine",
    exhaustive.mark(
        ["DDP", "DDP, bucket views", "FSDP2", "FSDP2, root only", "FSDP2, not resharded", "FSDP2, bfloat16", "HSDP"],
        but=["DDP", "FSDP2"],
    ),
)
def test_each_loop_is_judged_on_each_rank(two, engine):
    expect(two.run(loops.judged_loops, engine, list(ERRORS)), but={} if engine.startswith("DDP") else SHARDS)


def test_tensor_parallel_ranks_hold_the_same_batch_and_have_no_cadence(two):
    kinds = ["right", "undivided", "never zeroed"]
    expect(two.run(loops.judged_loops, "TP", kinds), kinds)


@pytest.mark.parametrize("engine", exhaustive.mark(["DDP, bucket views", "FSDP2", "TP"], but=["DDP, bucket views"]))
def test_gradients_that_are_set_to_zero_are_seen_as_well(two, engine):
    kinds = ["right", "undivided"]
    expect(two.run(loops.judged_loops, engine, kinds, loops.synchronised, loops.zero_in_place), kinds)


def test_ddp_with_a_static_graph_which_allows_no_cadence(two):
    expect(two.run(loops.judged_loops, "DDP, static graph", ["every"]), ["every"])


def test_shards_that_are_reduced_in_each_micro_batch_and_replicas_in_the_last(two):
    kinds = ["right", "never", "undivided"]
    expect(two.run(loops.judged_loops, "HSDP", kinds, loops.scattered), kinds)


@pytest.mark.parametrize("engine", exhaustive.mark(["compiled DDP", "compiled FSDP2"], but=["compiled DDP"]))
def test_a_compiled_model_is_judged_like_any_other(two, engine):
    kinds = ["right", "undivided", "never"]
    expect(two.run(loops.judged_loops, engine, kinds), kinds)


@pytest.mark.parametrize("engine", exhaustive.mark(["FSDP1", "FSDP1, original parameters"], but=["FSDP1"]))
def test_gradients_of_the_older_fsdp_which_cannot_step_before_an_exchange(two, engine):
    kinds = ["right", "every", "undivided", "never zeroed"]
    expect(two.run(loops.judged_loops, engine, kinds), kinds, but=SHARDS)


@pytest.mark.parametrize(
    "engine",
    exhaustive.mark(
        ["DDP", "DDP, bucket views", "FSDP2", "HSDP", "TP", "FSDP1, original parameters", "compiled DDP"],
        but=["DDP, bucket views", "HSDP"],
    ),
)
def test_training_on_ranks_is_the_same_bit_for_bit(two, engine):
    assert two.run(loops.same_bits, engine) == [True, True]


def test_a_script_that_averages_the_gradients_itself_makes_no_error(two):
    for findings, windows in two.run(loops.averaged_by_hand):
        assert findings == [("undecided", "sync-cadence")]
        assert windows == WINDOWS


@pytest.mark.parametrize("kind", exhaustive.mark(["DDP", "FSDP2", "HSDP"], but=["DDP"]))
def test_train_epoch_keeps_the_window_that_was_declared(two, kind):
    for findings, windows in two.run(loops.declared, kind):
        assert [rule for level, rule in findings if level != "undecided"] == []
        assert windows == [4, 4]


@pytest.mark.parametrize("schedule", exhaustive.mark(["GPipe", "1F1B"], but=["1F1B"]))
def test_a_stage_that_has_the_loss_is_judged_and_of_one_that_has_none_nothing_is_said(two, schedule):
    kinds = ["right", "undivided", "divided twice", "never zeroed"]
    first, last = two.run(loops.judged_pipelines, schedule, kinds)
    expect([last], kinds, {"divided twice": ERRORS["undivided"]})
    for kind, (findings, windows) in first.items():
        assert (findings, windows) == (ERRORS["never zeroed"] if kind == "never zeroed" else [], WINDOWS)


@pytest.mark.parametrize("engine", exhaustive.mark(["DDP", "DDP, bucket views", "FSDP2"], but=["DDP"]))
def test_one_process_is_judged_as_it_would_be_with_others_but_may_exchange_with_nobody_as_often_as_it_likes(engine):
    with Ranks(1, timeout=100) as one:
        expect(one.run(loops.judged_loops, engine, list(ERRORS)), but={"every": []})
