"""Answers to "two_bugs", a loop with a short window and a clip, and to "write_the_test", a checker of loops."""

from unittest.mock import patch

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from answers import outcomes, right, wrong
from answers.loops import squares
from course_utils import mlp, record, train_epoch, windows
from course_utils.audit import audit


@right("two_bugs")
def by_windows(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


@right("two_bugs")
def by_modulo(model, batches, loss_fn, optimizer, n, max_norm):
    tail = len(batches) % n
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        held = tail if i >= len(batches) - tail else n
        loss = loss_fn(model, batch) / held
        loss.backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


@right("two_bugs")
def by_the_helper(model, batches, loss_fn, optimizer, n, max_norm):
    train_epoch(model, batches, loss_fn, optimizer, n, len, max_norm=max_norm)


@right("two_bugs")
def by_hand(model, batches, loss_fn, optimizer, n, max_norm):
    parameters = list(model.parameters())
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        model.zero_grad()
        for batch in window:
            loss_fn(model, batch).backward()
        for p in parameters:
            p.grad /= len(window)
        norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
        if norm > max_norm:
            for p in parameters:
                p.grad *= max_norm / norm
        optimizer.step()


@right("two_bugs")
def collects_the_losses(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        torch.stack([loss_fn(model, batch) for batch in window]).mean().backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def has_both_bugs(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def only_the_clip_is_fixed(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def only_the_tail_is_fixed(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
            clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def drops_the_tail(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()


def window(update):
    def answer(model, batches, loss_fn, optimizer, n, max_norm):
        for held in windows(batches, n):
            optimizer.zero_grad()
            update(model, held, loss_fn, optimizer, max_norm)

    return answer


def backward(model, held, loss_fn, factor=None):
    for batch in held:
        (loss_fn(model, batch) * (factor or 1 / len(held))).backward()


@window
def clips_before_backward(model, held, loss_fn, optimizer, max_norm):
    clip_grad_norm_(model.parameters(), max_norm)
    backward(model, held, loss_fn)
    optimizer.step()


@window
def clips_after_the_step(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    optimizer.step()
    clip_grad_norm_(model.parameters(), max_norm)


@window
def never_clips(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    optimizer.step()


@window
def clips_to_another_norm(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    clip_grad_norm_(model.parameters(), max_norm / 2)
    optimizer.step()


@window
def clips_values(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    nn.utils.clip_grad_value_(model.parameters(), max_norm)
    optimizer.step()


@window
def clips_each_parameter(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    for p in model.parameters():
        clip_grad_norm_([p], max_norm)
    optimizer.step()


@window
def does_not_divide(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn, factor=1)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def zeroes_inside(model, held, loss_fn, optimizer, max_norm):
    for batch in held:
        optimizer.zero_grad()
        (loss_fn(model, batch) / len(held)).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


@window
def zeroes_before_the_step(model, held, loss_fn, optimizer, max_norm):
    backward(model, held, loss_fn)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.zero_grad()
    optimizer.step()


def never_zeroes(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):
        backward(model, held, loss_fn)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def starts_dirty(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):
        backward(model, held, loss_fn)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()


def steps_each_time(model, batches, loss_fn, optimizer, n, max_norm):
    by_windows(model, batches, loss_fn, optimizer, 1, max_norm)


def fewer_updates_where_the_limit_is_tight(model, batches, loss_fn, optimizer, n, max_norm):
    by_windows(model, batches, loss_fn, optimizer, n if max_norm > 1 else 2 * n, max_norm)


@window
def sends_the_running_total_backward(model, held, loss_fn, optimizer, max_norm):
    total = 0.0
    for batch in held:
        total = total + loss_fn(model, batch) / len(held)
        total.backward(retain_graph=True)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()


WRONG = {
    "loss-scale": [has_both_bugs, only_the_clip_is_fixed, does_not_divide, sends_the_running_total_backward],
    "clip-timing": [
        only_the_tail_is_fixed,
        clips_before_backward,
        clips_after_the_step,
        never_clips,
        clips_to_another_norm,
        clips_values,
    ],
    "wrong-value": [clips_each_parameter],
    "leftover-gradients": [drops_the_tail],
    "discarded-gradients": [zeroes_inside, zeroes_before_the_step],
    "stale-gradients": [never_zeroes, starts_dirty],
    "irregular-window": [steps_each_time, fewer_updates_where_the_limit_is_tight],
    "not-attempted": [lambda *_: None],
}


for bug, answers in WRONG.items():
    for answer in answers:
        wrong("two_bugs", bug)(answer)

for answer, bug, says in (
    (only_the_clip_is_fixed, "loss-scale", "10 micro-batches, N = 4"),
    (only_the_clip_is_fixed, "loss-scale", "of a short window, is 0.5 times what it should be"),
    (
        sends_the_running_total_backward,
        "loss-scale",
        "in update 1 the samples of its micro-batches count [4.0, 3.0, 2.0, 1.0] times what they should",
    ),
    (only_the_tail_is_fixed, "clip-timing", "max_norm = 0.1: what the window holds counts"),
    (never_clips, "clip-timing", "a gradient of norm 0.354 reached the step"),
    (lambda *a: a[3].step(), "empty-step", ""),
):
    wrong("two_bugs", bug, says=says)(answer)


@right("two_bugs")
def steps_with_a_closure(model, batches, loss_fn, optimizer, n, max_norm):
    for held in windows(batches, n):

        def closure(held=held):
            optimizer.zero_grad()
            loss = sum(loss_fn(model, batch) for batch in held) / len(held)
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm)
            return loss

        optimizer.step(closure)


@outcomes("two_bugs", mutate=[by_modulo])
def outcomes_of_two_bugs(answer):
    """The weights after two epochs."""
    for n, count, max_norm, dirty in ((2, 6, 0.2, 1), (4, 7, 50.0, 0), (4, 6, 0.3, 0), (1, 3, 0.2, 1), (9, 2, 50.0, 0)):
        yield lambda case=(n, count, max_norm, dirty): trained(answer, *case)


def trained(answer, n, count, max_norm, dirty):
    generator = torch.Generator().manual_seed(n)
    torch.manual_seed(n)
    model = mlp(3, 4, 2).double()
    batches = [torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(count)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for p in model.parameters():
        p.grad = torch.ones_like(p) if dirty else None
    for _ in range(2):
        answer(model, batches, squares, optimizer, n, max_norm)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


# "write_the_test": is a loop buggy, that is, does some micro-batch enter two updates, or none?


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


@right("write_the_test")
def through_a_helper(run):
    return _unbalanced(_trace(run))


def _trace(run):
    with record() as trace:
        run()
    return trace


def _unbalanced(trace):
    return not all(
        sum(trace.windows(lane)) == sum(1 for e in trace.on(lane) if e.kind == "backward") for lane in trace.lanes
    )


@right("write_the_test")
def returns_a_bool_of_a_list(run):
    trace = _trace(run)
    wrong = []
    for lane in trace.lanes:
        backwards = len([e for e in trace.on(lane) if e.kind == "backward"])
        if backwards - trace.leftover(lane) != sum(trace.windows(lane)):
            wrong.append("used twice or never")
        if trace.leftover(lane):
            wrong.append("left over")
    return bool(wrong)


@right("write_the_test")
def runs_it_twice(run):
    run()
    return _unbalanced(_trace(run))


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


@wrong("write_the_test", "does-not-run")
def reads_the_source(run):
    return "zero_grad" not in run.__name__


@wrong("write_the_test", "asks-the-auditor")
def asks_the_auditor(run):
    with audit() as report:
        run()
    return bool(report.errors)


@wrong("write_the_test", "misses-discarded-gradients")
def wants_equal_windows(run):
    return len(set(_trace(run).windows())) != 1


@wrong("write_the_test", "misses-discarded-gradients")
def looks_for_growing_windows(run):
    trace = _trace(run)
    return any(
        later > earlier
        for lane in trace.lanes
        for earlier, later in zip(trace.windows(lane), trace.windows(lane)[1:], strict=False)
    )


@wrong("write_the_test", "misses-discarded-gradients")
def looks_for_more_than_arrived(run):
    trace = _trace(run)
    return any(sum(trace.windows(lane)) > sum(e.kind == "backward" for e in trace.on(lane)) for lane in trace.lanes)


@wrong("write_the_test", "misses-stale-gradients")
def looks_for_less_than_arrived(run):
    trace = _trace(run)
    return sum(trace.windows()) < sum(e.kind == "backward" for e in trace.on())


@wrong("write_the_test", "misses-stale-gradients")
def looks_for_leftovers_alone(run):
    return _trace(run).leftover() > 0


@wrong("write_the_test", "misses-stale-gradients")
def asks_whether_it_zeroes(run):
    trace = _trace(run)
    return not any(event.kind == "zero" for event in trace.events)


@wrong("write_the_test", "misses-stale-gradients")
def looks_at_the_losses(run):
    losses = run()
    return losses[-1] > losses[0]


@wrong("write_the_test", "misses-stale-gradients")
def wants_one_backward_per_step(run):
    trace = _trace(run)
    return sum(e.kind == "backward" for e in trace.on()) != sum(e.kind == "step" for e in trace.on())


@wrong("write_the_test", "false-alarm")
def takes_a_short_window_for_a_leftover(run):
    trace = _trace(run)
    return _unbalanced(trace) or any(len(set(trace.windows(lane))) > 1 for lane in trace.lanes)


@wrong("write_the_test", "wrong-type")
def returns_a_sentence(run):
    return "buggy" if _unbalanced(_trace(run)) else "fine"


@wrong("write_the_test", "wrong-type")
def returns_the_counts(run):
    return _trace(run).windows()


@wrong("write_the_test", "not-attempted")
def prints_and_returns_nothing(run):
    _trace(run)


@wrong("write_the_test", "misses-stale-gradients")
def answers_the_other_way_round(run):
    return not _unbalanced(_trace(run))


@wrong("write_the_test", "leaves-hooks", says="a hook on every optimizer")
def leaves_a_hook(run):
    steps = []
    register_optimizer_step_post_hook(lambda *_: steps.append(1))
    return _unbalanced(_trace(run))


@wrong("write_the_test", "leaves-hooks", says="Tensor.backward")
def leaves_a_patch(run):
    backward, calls = torch.Tensor.backward, []

    def counted(self, *args, **options):
        calls.append(1)
        return backward(self, *args, **options)

    torch.Tensor.backward = counted
    return _unbalanced(_trace(run))


@wrong("write_the_test", "raises")
def breaks_the_loop(run):
    with patch.object(torch.Tensor, "backward", None):
        run()
    return True
