"""Answers to "write_the_test": is a loop buggy, that is, does some gradient enter two updates, or none?"""

from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from answers import right, wrong
from course_utils import record


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


def takes_fewer_for_used(run):
    arrived, used, left = _traced(run)
    return any(u > a for a, u in zip(arrived, used, strict=True)) or any(left)


def takes_what_is_left_over_for_used(run):
    arrived, used, left = _traced(run)
    return any(a != u + kept for a, u, kept in zip(arrived, used, left, strict=True))


def leaves_a_hook(run):
    register_optimizer_step_post_hook(lambda *_: None)
    return counts_on_every_lane(run)


def breaks_the_loop(run):
    with patch.object(torch.Tensor, "backward", None):
        run()


for bug, says, answer in (
    ("misses-stale-gradients", "", lambda run: run() and False),
    ("misses-discarded-gradients", "", takes_fewer_for_used),
    ("misses-leftover-gradients", "", takes_what_is_left_over_for_used),
    ("false-alarm", "", lambda run: True),
    ("wrong-type", "", lambda run: "buggy" if counts_on_every_lane(run) else "fine"),
    ("not-attempted", "", lambda run: print(_traced(run))),
    ("leaves-hooks", "left on every optimizer: expected 0", leaves_a_hook),
    ("raises", "", breaks_the_loop),
):
    wrong("write_the_test", bug, says)(answer)
