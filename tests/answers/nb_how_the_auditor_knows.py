"""Answers to "write_the_test": is a loop buggy, that is, does some gradient enter two updates, or none?"""

from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from answers import right, wrong
from course_utils import record
from gradaudit import audit


def _traced(run):
    """How many backward calls arrived on each lane, how many entered updates, and how many are left."""
    with record() as trace:
        run()
    arrived = [sum(event.kind == "backward" for event in trace.on(lane)) for lane in trace.lanes]
    return arrived, [sum(trace.windows(lane)) for lane in trace.lanes], [trace.leftover(lane) for lane in trace.lanes]


@right("write_the_test")
def counts_on_every_lane(run):
    arrived, used, _ = _traced(run)
    return (torch.tensor(arrived) != torch.tensor(used)).any()


@wrong("write_the_test", "misses-stale-gradients")
def accuses_none(run):
    run()
    return False


@wrong("write_the_test", "false-alarm")
def accuses_all(run):
    run()
    return True


@wrong("write_the_test", "does-not-run")
def accuses_unseen(run):
    return True


@wrong("write_the_test", "asks-the-auditor")
def asks_the_auditor(run):
    with audit() as report:
        run()
    return bool(report.errors)


@wrong("write_the_test", "misses-discarded-gradients")
def takes_fewer_for_used(run):
    arrived, used, left = _traced(run)
    return any(u > a for a, u in zip(arrived, used, strict=True)) or any(left)


@wrong("write_the_test", "misses-leftover-gradients")
def takes_what_is_left_over_for_used(run):
    arrived, used, left = _traced(run)
    return any(a != u + kept for a, u, kept in zip(arrived, used, left, strict=True))


@wrong("write_the_test", "wrong-type")
def returns_a_sentence(run):
    return "buggy" if counts_on_every_lane(run) else "fine"


@wrong("write_the_test", "not-attempted")
def prints_and_returns_nothing(run):
    _traced(run)


@wrong("write_the_test", "leaves-hooks", says="a hook on every optimizer")
def leaves_a_hook(run):
    register_optimizer_step_post_hook(lambda *_: None)
    return counts_on_every_lane(run)


@wrong("write_the_test", "raises")
def breaks_the_loop(run):
    with patch.object(torch.Tensor, "backward", None):
        run()
    return True
