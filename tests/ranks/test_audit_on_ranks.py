"""Every engine for several ranks under the auditor: a correct loop has no finding."""

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
    "own means": [("error", "token-weights")],  # over items, of which each rank has others
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


THREE = "right", "undivided", "never"
IN_PLACE = loops.synchronised, loops.zero_in_place
JUDGED = {  # engine, loops, how they exchange and zero, what else is expected; always run
    "DDP": ("DDP", ERRORS, (), ()),
    "FSDP2": ("FSDP2", ERRORS, (), SHARDS),
    "ranks that hold the same batch": ("TP", ("right", "undivided", "never zeroed"), (), ()),
    "a static graph, which allows no cadence": ("DDP, static graph", ("every",), (), ()),
    "reduced over the shards in each, over replicas in the last": ("HSDP", THREE, (loops.scattered,), ()),
    "bucket views, set to zero": ("DDP, bucket views", ("right", "undivided"), IN_PLACE, ()),
    "compiled DDP": ("compiled DDP", THREE, (), ()),
}
JUDGED_TOO = {
    "bucket views": ("DDP, bucket views", ERRORS, (), ()),
    **{kind: (kind, ERRORS, (), SHARDS) for kind in ("FSDP2, root only", "FSDP2, not resharded", "FSDP2, bfloat16")},
    "HSDP": ("HSDP", ERRORS, (), SHARDS),
    "FSDP2, set to zero": ("FSDP2", ("right", "undivided"), IN_PLACE, ()),
    "TP, set to zero": ("TP", ("right", "undivided"), IN_PLACE, ()),
    "compiled FSDP2": ("compiled FSDP2", THREE, (), ()),
}


@pytest.mark.parametrize("case", exhaustive.mark([*JUDGED, *JUDGED_TOO], but=JUDGED))
def test_each_loop_is_judged_on_each_rank(two, case):
    engine, kinds, how, but = (JUDGED | JUDGED_TOO)[case]
    expect(two.run(loops.judged_loops, engine, list(kinds), *how), kinds, but)


@pytest.mark.parametrize(
    "engine",
    exhaustive.mark(
        ["DDP", "DDP, bucket views", "FSDP2", "HSDP", "TP", "compiled DDP"],
        but=["DDP, bucket views", "HSDP"],
    ),
)
def test_training_on_ranks_is_the_same_bit_for_bit(two, engine):
    assert two.run(loops.same_bits, engine) == [True, True]


def test_a_script_that_averages_the_gradients_itself_makes_no_error(two):
    asked = [("undecided", "loss-scale"), ("undecided", "sync-cadence")]
    assert two.run(loops.averaged_by_hand) == [(asked, WINDOWS)] * 2


@pytest.mark.parametrize(
    ("how", "followed", "fix"),
    [
        ("the module itself", "the wrapper", "call the wrapper itself, not .module"),
        ("a layer that came later", "all layers", "wrap the model after all of its layers are there"),
    ],
)
def test_what_goes_beside_the_wrapper_is_not_exchanged(two, how, followed, fix):
    assert two.run(loops.beside_the_wrapper, how) == [[("error", "sync-cadence", fix)]] * 2
    assert two.run(loops.beside_the_wrapper, followed) == [[]] * 2


@pytest.mark.parametrize(("whose", "findings"), [("all ranks", []), ("this rank", [("undecided", "token-weights")])])
def test_a_mean_over_this_ranks_tokens_is_no_mean_over_all(two, whose, findings):
    assert two.run(loops.tokens_of, whose) == [findings] * 2


@pytest.mark.parametrize("kind", exhaustive.mark(["DDP", "FSDP2", "HSDP"], but=["DDP"]))
def test_train_epoch_keeps_the_window_that_was_declared(two, kind):
    for findings, windows in two.run(loops.declared, kind):
        assert [rule for level, rule in findings if level != "undecided"] == []
        assert windows == [4, 4]


@pytest.mark.parametrize(
    ("counts", "undecided"),
    [
        ([[4, 4, 4, 4, 4], [4, 4, 4, 4, 4]], []),
        ([[4, 2, 1, 7, 3, 3], [1, 1, 2, 5, 1]], ["loss-scale"]),
        ([[5, 5], []], []),  # one rank has all
    ],
)
def test_train_epoch_on_ragged_shards_has_no_error_and_what_one_rank_cannot_see_is_undecided(two, counts, undecided):
    first, second = two.run(loops.ragged, counts)
    assert not [rule for level, rule in first + second if level == "error"]
    assert [rule for level, rule in first if level == "undecided"] == undecided


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
