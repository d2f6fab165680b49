"""What the judges share: when two results agree, which updates a loop made, and in which words that is said."""

import math

import pytest
import torch

from course_utils import Tally
from course_utils.practice.exercises import EXERCISES, exercise
from course_utils.practice.judging import Mistake, close, compare, lost_digits
from course_utils.practice.updates import Expected, Recorder, run_on_tally


@pytest.mark.parametrize(
    ("got", "want", "agree"),
    [
        (1.0, 1.0 + 1e-8, True),
        (1.0, 1.0 + 1e-4, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (math.inf, 1.0, False),
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0], [1.0, 2.0], False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), True),
        (torch.ones(2), torch.ones(3), False),
        (torch.tensor([math.nan]), torch.tensor([0.0]), False),
        ([torch.ones(2)], [torch.zeros(2)], False),
        (1.0, torch.ones(1), False),
    ],
)
def test_results_agree_up_to_rounding(got, want, agree):
    assert close(got, want) is agree


def test_a_result_that_differs_gets_the_name_of_the_first_known_bug_that_gives_it():
    compare([1.0], [1.0], "a case", [("never-asked", "", lambda: 1 / 0)])
    known = [("other", "not this", [5.0]), ("doubled", "twice", lambda: [2.0]), ("late", "too late", [2.0])]
    with pytest.raises(Mistake) as found:
        compare([2.0], [1.0], "a case", known)
    assert (found.value.verdict.bug, found.value.verdict.message) == ("doubled", "a case: twice.")
    with pytest.raises(Mistake) as found:
        compare([3.0], [1.0], "a case", known)
    assert (found.value.verdict.bug, found.value.verdict.message) == ("wrong-value", "a case.")


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        (0.333, 1 / 3, "rounded to 3 decimal places"),
        ([0.33, 1.0], [1 / 3, 1.0], "rounded to 2 decimal places"),
        (6.0, 6.75, "cut to whole numbers"),
        (float(torch.tensor(1 / 3)), 1 / 3, "as if computed in float32, which holds 7 digits"),
        (0.335, 1 / 3, ""),
        (7.0, 5.5, ""),
        ([0.33], [1 / 3, 1.0], ""),
        (math.nan, 1 / 3, ""),
    ],
)
def test_results_that_have_lost_digits_are_told_from_wrong_ones(got, want, says):
    assert [hint for _, hint, _ in lost_digits(got, want)][:1] == ([says] if says else [])


def test_a_recorder_reads_the_gradient_that_a_step_uses_also_that_of_a_closure():
    tally = Tally(2).double()
    optimizer = torch.optim.SGD(tally.parameters(), lr=1.0)
    recorder = Recorder(tally.weight, optimizer)
    recorder.start_epoch()

    def closure():
        optimizer.zero_grad()
        loss = tally(torch.tensor([1])).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.zero_grad()
    optimizer.step()
    observed = recorder.observed()
    assert [row.tolist() for row in observed.rows] == [[0.0, 1.0], [0.0, 0.0]]
    assert (observed.in_first_epoch, observed.backwards, observed.steps) == (2, 1, 2)
    observed = recorder.observed(skip_idle=True)
    assert (len(observed.rows), observed.steps) == (1, 2)


def test_expected_updates_are_the_means_of_their_windows():
    expected = Expected((2, 0, 1, 0), 2)
    assert [row.tolist() for row in expected.rows] == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]] * 2
    assert [row.tolist() for row in Expected((1, 0, 0), 2, epochs=1).rows] == [[1.0]], "an empty window is no update"


def test_the_updates_of_a_loop_are_counted_by_epoch():
    def loop(model, batches, loss_fn, optimizer, n):
        for batch in batches:
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
        optimizer.step()

    observed = run_on_tally(loop, (1, 1), 2)
    assert (len(observed.rows), observed.in_first_epoch, observed.backwards, observed.steps) == (2, 1, 4, 2)


def test_two_exercises_of_one_name_are_an_error():
    with pytest.raises(ValueError, match="two exercises are called 'train'"):
        exercise("train")(lambda answer: "")
    assert EXERCISES["train"].notebook == "02_zeroing"
