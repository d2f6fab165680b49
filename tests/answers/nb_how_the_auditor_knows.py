"""Answers to "write_the_test": is a loop buggy, that is, does some gradient enter two updates, or none?"""

from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from answers import right, wrong
from course_utils import record
from gradaudit import audit


@right("write_the_test")
def counts_on_every_lane(run):
    with record() as trace:
        run()
    for lane in trace.lanes:
        arrived = sum(event.kind == "backward" for event in trace.on(lane))
        if sum(trace.windows(lane)) != arrived or trace.leftover(lane):
            return True
    return False


@right("write_the_test")
def counts_in_one_line(run):
    with record() as trace:
        run()
    arrived = {lane: [e.kind for e in trace.on(lane)].count("backward") for lane in trace.lanes}
    return any(arrived[lane] != sum(trace.windows(lane)) for lane in trace.lanes)


@right("write_the_test")
def counts_with_a_tensor(run):
    with record() as trace:
        run()
    gaps = []
    for lane in trace.lanes:
        gaps.append(sum(trace.windows(lane)) - sum(e.kind == "backward" for e in trace.on(lane)))
    return torch.tensor(gaps).any()


@right("write_the_test")
def follows_each_event(run):
    """Not used is what was zeroed or is left; used twice is what a step finds that an earlier step has found."""
    with record() as trace:
        run()
    for lane in trace.lanes:
        fresh = old = 0
        for event in trace.on(lane):
            if event.kind == "backward":
                fresh += 1
                if old:
                    return True
            elif event.kind == "step":
                fresh, old = 0, event.held
            elif event.kind == "zero":
                if fresh:
                    return True
                old = 0
        if fresh:
            return True
    return False


@right("write_the_test")
def compares_directions(run):
    return _differs_from_what_arrived(run, lambda tensor: tensor / tensor.norm().clamp(min=1e-300))


@wrong("write_the_test", "false-alarm", says="clipped-running-sum")
def takes_clipping_for_a_bug(run):
    return _differs_from_what_arrived(run, lambda tensor: tensor)


def _differs_from_what_arrived(run, normalized):
    """What a step finds must be the sum of what has arrived at the parameter since the last step."""
    arrived, bad, handles = {}, [], []
    add_param_group = torch.optim.Optimizer.add_param_group

    def add(self, group):
        add_param_group(self, group)
        for p in self.param_groups[-1]["params"]:
            arrived[p] = []
            handles.append(p.register_hook(lambda grad, p=p: arrived[p].append(grad.clone())))

    def before_step(optimizer, *_):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            found = torch.zeros_like(p) if p.grad is None else p.grad
            if not torch.allclose(normalized(found), normalized(sum(arrived[p], torch.zeros_like(p)))):
                bad.append(p)
            arrived[p].clear()

    hook = register_optimizer_step_pre_hook(before_step)
    try:
        with patch.object(torch.optim.Optimizer, "add_param_group", add):
            run()
    finally:
        for handle in (hook, *handles):
            handle.remove()
    return bool(bad) or any(arrived.values())


def _trace(run):
    with record() as trace:
        run()
    return trace


def _unbalanced(trace):
    return not all(
        sum(trace.windows(lane)) == sum(1 for e in trace.on(lane) if e.kind == "backward") for lane in trace.lanes
    )


@wrong("write_the_test", "misses-stale-gradients")
def accuses_none(run):
    run()
    return False


@wrong("write_the_test", "does-not-run")
def accuses_unseen(run):
    return True


@wrong("write_the_test", "asks-the-auditor")
def asks_the_auditor(run):
    with audit() as report:
        run()
    return bool(report.errors)


@wrong("write_the_test", "misses-discarded-gradients")
def wants_equal_windows(run):
    return len(set(_trace(run).windows())) != 1


@wrong("write_the_test", "misses-leftover-gradients")
def takes_what_is_left_over_for_used(run):
    trace = _trace(run)
    return any(
        sum(trace.windows(lane)) + trace.leftover(lane) != [e.kind for e in trace.on(lane)].count("backward")
        for lane in trace.lanes
    )


@wrong("write_the_test", "wrong-type")
def returns_a_sentence(run):
    return "buggy" if _unbalanced(_trace(run)) else "fine"


@wrong("write_the_test", "not-attempted")
def prints_and_returns_nothing(run):
    _trace(run)


@wrong("write_the_test", "leaves-hooks", says="a hook on every optimizer")
def leaves_a_hook(run):
    steps = []
    register_optimizer_step_post_hook(lambda *_: steps.append(1))
    return _unbalanced(_trace(run))


@wrong("write_the_test", "raises")
def breaks_the_loop(run):
    with patch.object(torch.Tensor, "backward", None):
        run()
    return True
