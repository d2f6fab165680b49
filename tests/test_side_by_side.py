"""The benchmark `side_by_side.py`, as far as it runs without the libraries that it compares."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from course_utils import train_epoch, windows


@pytest.fixture(scope="module")
def bench():
    spec = spec_from_file_location("side_by_side", Path(__file__).parent / "benchmarks" / "side_by_side.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def batches(bench):
    return bench.workload()


@pytest.fixture
def asked(bench, batches):
    return [tuple(window) for window in windows(range(len(batches)), bench.N)]


def test_the_workload_is_ragged_masked_and_ends_in_a_short_window(bench, batches, asked):
    assert 1 < len(asked[-1]) < bench.N
    assert len({batch["letters"].shape for batch in batches}) > len(batches) / 2
    for window in asked:
        counts = [bench.tokens(batches[i]) for i in window]
        assert max(counts) > 3 * min(counts)
    masked = [batch["labels"] == -100 for batch in batches]
    assert sum(bool(mask.any()) for mask in masked) > len(batches) / 2
    for batch, mask in zip(batches, masked, strict=True):
        assert bool(((batch["letters"] == 0) == mask).all())
        assert bool((batch["labels"][~mask] > 0).all())


def test_a_large_batch_holds_exactly_the_rows_and_tokens_of_its_window(bench, batches, asked):
    for window in asked:
        parts = [batches[i] for i in window]
        large = bench.together(parts)
        assert bench.tokens(large) == sum(map(bench.tokens, parts))
        assert len(large["letters"]) == sum(len(part["letters"]) for part in parts)


def test_each_update_of_the_courses_loop_is_that_of_the_large_batch(bench, batches, asked):
    made = bench.updates(bench.this_course, batches)
    assert [window for window, _ in made] == asked
    assert max(bench.errors(made, asked, batches)) <= bench.BAR


def test_a_loop_that_weights_every_micro_batch_alike_is_far_from_it(bench, batches, asked):
    def mean_of_means(model, optimizer, loader):
        train_epoch(model, loader, bench.loss_fn, optimizer, n=bench.N, weight=lambda batch: 1)

    assert min(bench.errors(bench.updates(mean_of_means, batches), asked, batches)) > 0.1
