"""What the judges of training loops share: precision, memory measured against the answer itself, and logged losses."""

import pytest
import torch
from torch import nn

from course_utils.practice.judging import Mistake, changed, compare_weights
from course_utils.practice.updates import Expected, Observed, alone, compare_losses, judge_model, sgd


def mistake(call, *arguments):
    with pytest.raises(Mistake) as found:
        call(*arguments)
    return found.value.verdict


def test_weights_that_went_to_another_dtype_or_lost_digits_are_named_so():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    theirs.load_state_dict(ours.state_dict())
    compare_weights(ours, theirs, "a case")
    with torch.no_grad():
        theirs.weight *= 1 + 2e-5
    verdict = mistake(compare_weights, ours, theirs, "a case")
    assert (verdict.bug, "as if computed in float32" in verdict.message) == ("low-precision", True)
    verdict = mistake(compare_weights, ours, theirs.half(), "a case")
    assert (verdict.bug, "went from float64 to float16" in verdict.message) == ("low-precision", True)
    theirs = nn.Linear(3, 2).double()
    assert mistake(compare_weights, ours, theirs, "a case").bug == "wrong-value"


@pytest.mark.parametrize(
    ("off", "bug"), [(1e-8, None), (2e-5, "low-precision"), (5e-3, "low-precision"), (0.1, "loss-scale")]
)
def test_updates_that_are_almost_right_have_lost_digits(off, bug):
    expected = Expected((1, 1), 2, epochs=1)
    observed = Observed([row * (1 + off) for row in expected.rows], in_first_epoch=1, backwards=2, steps=1)
    if bug is None:
        expected.compare(observed, "a case")
    else:
        verdict = mistake(expected.compare, observed, "a case")
        assert verdict.bug == bug
        assert "is 1 times" not in verdict.message


def test_a_change_to_what_was_given_is_found_wherever_it_is():
    def given():
        return [(torch.arange(3), torch.zeros(2)), (torch.arange(2), torch.ones(1))]

    now = given()
    assert changed(now, given(), "the batches") == ""
    now[1][1].add_(1)
    assert changed(now, given(), "the batches") == "your function changed the batches that it was given in place"
    assert "has 1 entries afterwards instead of 2" in changed(now[:1], given(), "the batches")
    assert changed([None, now[1]], given(), "the batches")
    assert changed([(None, None), now[1]], given(), "the batches")


def test_memory_can_be_measured_against_what_the_answer_itself_holds_for_one_micro_batch():
    batches = [torch.randn(4, 3, dtype=torch.float64) for _ in range(3)]

    def train(backward_at_once):
        def run(model, optimizer, batches=batches):
            optimizer.zero_grad()
            losses = []
            for batch in batches:
                losses.append(model(batch).exp().exp().exp().mean())  # holds more than a mean alone would
                if not backward_at_once:
                    losses[-1].backward()
                    losses[-1] = losses[-1].detach()
            if backward_at_once:
                sum(losses).backward()
            optimizer.step()

        return run

    def judge(answer):
        one = alone(lambda model, optimizer: answer(model, optimizer, batches[:1]))
        judge_model(answer, train(True), nn.Linear(3, 2).double(), sgd, "a case", one)

    judge(train(False))
    assert mistake(judge, train(True)).bug == "held-graphs"


def test_measuring_one_micro_batch_leaves_the_model_as_it_was():
    model = nn.Linear(2, 1)
    before = [p.clone() for p in model.parameters()]

    def train(model, optimizer):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    alone(train)(model)
    assert all(map(torch.equal, model.parameters(), before))
    assert all(p.grad is None for p in model.parameters())


def test_logged_losses_are_compared_exactly_and_may_not_hold_graphs():
    right, other = [0.123456, 2.5], ("wrong-value", "neither right nor known")
    compare_losses([0.123456, 2.5], right, "a case", [], *other)
    compare_losses(torch.tensor(right), right, "a case", [], *other)
    for wrong, bug in (
        ([0.123, 2.5], "low-precision"),
        ([0.1234, 2.501], "low-precision"),
        ([0.2, 2.5], "wrong-value"),
    ):
        assert mistake(compare_losses, wrong, right, "a case", [], *other).bug == bug
    known = [("doubled", "twice", [0.246912, 5.0])]
    assert mistake(compare_losses, [0.246912, 5.0], right, "a case", known, *other).bug == "doubled"
    with_graphs = torch.tensor(right, requires_grad=True) * 1
    assert mistake(compare_losses, list(with_graphs), right, "a case", [], *other).bug == "held-graphs"
