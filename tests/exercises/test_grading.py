"""A learner's checker, graded by the zoo: what it gets to see, and what it may not leave behind."""

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from course_utils.exercises import judge
from course_utils.exercises.judging import Mistake
from course_utils.exercises.nb_how_the_auditor_knows import NOT_COUNTED, RULES, write_the_test
from course_utils.zoo import ZOO


def test_every_loop_of_the_rules_and_every_twin_is_shown_once_and_has_no_name():
    seen = []

    def checker(run):
        assert (run.__name__, run.__doc__) == ("<lambda>", None)
        seen.append(tuple(run()))
        return False

    expected = [each for each in ZOO.values() if each.rule in RULES and each.name not in NOT_COUNTED]
    verdict = judge("write_the_test", checker)
    assert f"misses {', '.join(specimen.name for specimen in expected)}. never-zeroed: " in verdict.message
    assert ZOO["never-zeroed"].source in verdict.message
    assert set(seen) == {tuple(loop()) for specimen in expected for loop in (specimen.buggy, specimen.fixed)}
    assert len(seen) == 2 * len(expected)


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
