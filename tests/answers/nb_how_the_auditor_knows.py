"""Answers to "write_the_test": does some gradient of a loop enter two updates, or none?"""

from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from answers import right, wrong
from course_utils import record


def counting(is_buggy):
    """Asks how many backward calls each lane had, how many entered updates, and what is left."""

    def checker(run):
        with record() as trace:
            run()
        arrived = [sum(event.kind == "backward" for event in trace.on(lane)) for lane in trace.lanes]
        used, left = [sum(trace.updates(lane)) for lane in trace.lanes], [trace.leftover(lane) for lane in trace.lanes]
        return is_buggy(*map(torch.tensor, (arrived, used, left))).any()

    return checker


balance = counting(lambda arrived, used, left: arrived != used)
right("write_the_test")(balance)


def leaves_a_hook(run):
    register_optimizer_step_post_hook(lambda *_: None)
    return balance(run)


def breaks_the_loop(run):
    with patch.object(torch.Tensor, "backward", None):
        run()


for bug, answer in (
    ("misses-stale-gradients", lambda run: run() and False),
    ("misses-discarded-gradients", counting(lambda arrived, used, left: (used > arrived) | (left > 0))),
    ("misses-leftover-gradients", counting(lambda arrived, used, left: arrived != used + left)),
    ("false-alarm", lambda run: True),
    ("wrong-type", lambda run: "buggy" if balance(run) else "fine"),
    ("not-attempted", lambda run: print(balance(run))),
    ("leaves-hooks", leaves_a_hook),
    ("raises", breaks_the_loop),
):
    wrong("write_the_test", bug)(answer)
