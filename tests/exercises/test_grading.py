"""A learner's checker, graded by the zoo: what it gets to see, and what it may not leave behind."""

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from course_utils import record
from course_utils.exercises.judging import Mistake
from course_utils.exercises.nb_how_the_auditor_knows import HINTS, NOT_COUNTED, write_the_test
from course_utils.zoo import ZOO


def is_unbalanced(trace):
    counts = {lane: [event.kind for event in trace.on(lane)].count("backward") for lane in trace.lanes}
    return any(sum(trace.windows(lane)) != arrived for lane, arrived in counts.items())


def unbalanced(run):
    with record() as trace:
        run()
    return is_unbalanced(trace)


def mistake(checker):
    with pytest.raises(Mistake) as caught:
        write_the_test(checker)
    return caught.value.verdict


def test_every_loop_of_the_rules_and_every_twin_is_shown_once_and_has_no_name():
    seen = []

    def checker(run):
        assert (run.__name__, run.__doc__) == ("run", None)
        with record() as trace:
            seen.append(tuple(run()))
        return is_unbalanced(trace)

    expected = [specimen for specimen in ZOO.values() if specimen.rule in HINTS and specimen.name not in NOT_COUNTED]
    assert f"each of {len(expected)} public bugs" in write_the_test(checker)
    assert set(seen) == {tuple(loop()) for specimen in expected for loop in (specimen.buggy, specimen.fixed)}
    assert len(seen) == 2 * len(expected)


def test_all_that_is_missed_or_accused_is_named_and_the_first_of_it_explained():
    verdict = mistake(lambda run: run() and False)
    assert verdict.bug == "misses-stale-gradients"
    expected = [name for name, specimen in ZOO.items() if specimen.rule in HINTS and specimen.name not in NOT_COUNTED]
    assert f"misses {len(expected)} of {len(expected)} buggy loops ({', '.join(expected)}). What" in verdict.message
    assert ZOO["never-zeroed"].source in verdict.message
    verdict = mistake(lambda run: bool(run()))
    assert verdict.bug == "false-alarm"
    said = f"accuses the fixed twins of {len(expected)} of {len(expected)} buggy loops ({', '.join(expected)}). What"
    assert said in verdict.message


@pytest.mark.parametrize("error", [Mistake("wrong", ""), KeyError("no such thing"), KeyboardInterrupt()])
def test_what_a_checker_leaves_in_torch_is_taken_back_also_after_an_error(error):
    def leaves_a_hook(run):
        torch.optim.Optimizer.zero_grad = lambda *_, **__: None
        register_optimizer_step_pre_hook(lambda *_: None)
        raise error

    zero_grad, before = torch.optim.Optimizer.zero_grad, dict(_global_optimizer_pre_hooks)
    with pytest.raises(type(error)):
        write_the_test(leaves_a_hook)
    assert torch.optim.Optimizer.zero_grad is zero_grad
    assert _global_optimizer_pre_hooks == before
