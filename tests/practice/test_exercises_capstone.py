"""The exercises of notebooks 09 and 09b: right loops in several styles pass, wrong ones are named, junk is judged."""

import inspect

import pytest
import torch
from mutations import mutants
from torch import nn

from course_utils import train_epoch, windows
from course_utils.practice.exercises import judge
from course_utils.practice.exercises import nb09_capstone as capstone

OOM = torch.OutOfMemoryError


def with_lists(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        total, window_loss = sum(weight(batch) for batch in window), 0.0
        if total:
            for batch in window:
                if weight(batch):
                    loss = loss_fn(model, batch) * (weight(batch) / total)
                    scaler.scale(loss).backward()
                    window_loss += loss.item()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() >= scale:
                schedule.step()
            optimizer.zero_grad()
            losses.append(window_loss)
    return losses


def with_the_helper(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    return train_epoch(
        model, batches, loss_fn, optimizer, n, weight, scaler=scaler, max_norm=max_norm, scheduler=schedule
    )


def with_sums(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    """Backward on sums, and one division of the gradients at the end of the window."""
    losses, held = [], []
    model.zero_grad()

    def update():
        total = sum(weight(batch) for batch, _ in held)
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad /= total
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        skipped_before = len(steps)
        scaler.step(optimizer)
        scaler.update()
        if len(steps) > skipped_before:
            schedule.step()
        for p in model.parameters():
            p.grad = None
        losses.append(sum(loss for _, loss in held) / total)
        held.clear()

    steps = []
    hook = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for seen, batch in enumerate(batches, start=1):
        if weight(batch):
            loss = loss_fn(model, batch) * weight(batch)
            scaler.scale(loss).backward()
            held.append((batch, loss.item()))
        if seen % n == 0 and held:
            update()
    if held:
        update()
    hook.remove()
    return losses


@pytest.mark.parametrize("answer", [with_lists, with_the_helper, with_sums])
def test_right_loops_pass(answer):
    verdict = judge("production", answer)
    assert verdict.passed, verdict


@pytest.mark.parametrize("fault", capstone._FAULTS)
def test_each_fault_is_named(fault):
    bug = judge("production", capstone._loop(fault)).bug
    if fault == "empty stepped":
        assert bug in ("empty-step", "scaler-timing")
    else:
        assert bug == capstone._FAULTS[fault][0]


def edited(old, new, function=with_lists):
    source = inspect.getsource(function)
    assert source.count(old) == 1
    namespace = dict(globals())
    exec(source.replace(old, new), namespace)
    return namespace[function.__name__]


@pytest.mark.parametrize(
    ("old", "new", "bug"),
    [
        ("window_loss += loss.item()", "window_loss += loss_fn(model, batch).item()", "logged-loss"),
        ("return losses", "return None", "wrong-type"),
        ("for window in windows(batches, n):", "len(batches)\n    for window in windows(batches, n):", "needs-length"),
        ("            scaler.update()\n", "", "scaler-timing"),
        (
            "                    window_loss",
            "                    scaler.update()\n                    window_loss",
            "scaler-timing",
        ),
        ("        if total:", "        if True:", "empty-step"),
        ("if scaler.get_scale() >= scale:", "if scaler.get_scale() == scale:", "scheduler-cadence"),
    ],
)
def test_edited_loops_are_named(old, new, bug):
    assert judge("production", edited(old, new)).bug == bug


def test_ticks_that_are_missing_are_counted_beside_the_scale():
    answer = edited("if scaler.get_scale() >= scale:", "if scaler.get_scale() == scale:")
    message = judge("production", answer).message
    assert message.endswith("ticks of the schedule: 1 in place of 2; the scale went from 256 to 512.")


def survive(model, items, loss_fn, optimizer, size):
    while True:
        optimizer.zero_grad()
        try:
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            break
        except OOM:
            if size == 1:
                raise
        size //= 2
    optimizer.step()
    optimizer.zero_grad()
    return size


def by_recursion(model, items, loss_fn, optimizer, size):
    """The next attempt is called after the except has ended."""
    model.zero_grad()
    failed = False
    try:
        for part in windows(items, size):
            (loss_fn(model, torch.stack(part)) * len(part) / len(items)).backward()
    except OOM:
        failed = True
        if size < 2:
            model.zero_grad()
            raise
    if failed:
        return by_recursion(model, items, loss_fn, optimizer, size // 2)
    optimizer.step()
    model.zero_grad()
    return size


def only_the_failed_part_again(model, items, loss_fn, optimizer, size):
    """A forward that fails leaves nothing behind: the rest may go on in smaller parts."""
    optimizer.zero_grad()
    done = 0
    while done < len(items):
        part = items[done : done + size]
        try:
            loss = loss_fn(model, part) * len(part) / len(items)
        except OOM:
            if size == 1:
                raise
            size //= 2
            continue
        loss.backward()
        done += len(part)
    optimizer.step()
    optimizer.zero_grad()
    return size


def halved_in_the_except(model, items, loss_fn, optimizer, size):
    """Only the number is halved there; the attempt itself comes after it."""
    while True:
        try:
            optimizer.zero_grad()
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            break
        except OOM:
            if size == 1:
                raise
            size //= 2
    optimizer.step()
    optimizer.zero_grad()
    return size


def recursion_in_the_except(model, items, loss_fn, optimizer, size):
    optimizer.zero_grad()
    try:
        for part in items.split(size):
            (loss_fn(model, part) * (len(part) / len(items))).backward()
    except OOM:
        if size == 1:
            raise
        return recursion_in_the_except(model, items, loss_fn, optimizer, size // 2)
    optimizer.step()
    optimizer.zero_grad()
    return size


@pytest.mark.parametrize("answer", [survive, halved_in_the_except, by_recursion, only_the_failed_part_again])
def test_right_survivors_pass(answer):
    verdict = judge("survive", answer)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    ("old", "new", "bug"),
    [
        (
            "    while True:\n        optimizer.zero_grad()\n",
            "    optimizer.zero_grad()\n    while True:\n",
            "stale-gradients",
        ),
        ("len(part) / len(items)", "size / len(items)", "loss-scale"),
        ("len(part) / len(items)", "1.0", "loss-scale"),
        (
            "            for part",
            "            size = size\n            optimizer.zero_grad()\n            for part",
            "",
        ),
        (
            "                (loss_fn",
            "                optimizer.zero_grad()\n                (loss_fn",
            "discarded-gradients",
        ),
        ("except OOM", "except RuntimeError", "catches-too-much"),
        ("except OOM", "except ValueError", "not-caught"),
        ("    return size", "    return None", "wrong-type"),
        ("        size //= 2\n", "        size = 1\n", "wrong-size"),
        ("            if size == 1:\n                raise\n", "            size = max(size, 2)\n", "endless"),
        ("    optimizer.step()\n    optimizer.zero_grad()\n", "    optimizer.step()\n", "stale-gradients"),
        ("    optimizer.step()\n", "", "leftover-gradients"),
        ("    optimizer.step()\n", "    optimizer.step()\n    optimizer.step()\n", "irregular-window"),
    ],
)
def test_wrong_survivors_are_named(old, new, bug):
    assert judge("survive", edited(old, new, survive)).bug in (
        bug,
        "token-weights" if new == "size / len(items)" else bug,
    )


def test_an_attempt_during_the_except_is_named():
    assert judge("survive", recursion_in_the_except).bug == "kept-activations"


def test_an_error_that_is_kept_is_named():
    answer = edited("        except OOM:\n", "        except OOM as error:\n            kept = error\n", survive)
    assert judge("survive", answer).bug == "kept-activations"


JUNK = [
    lambda *args: None,
    lambda *args: ...,
    lambda *args: 1 / 0,
    lambda *args: "text",
    lambda *args: [],
    lambda *args: torch.zeros(2),
    lambda: None,
    lambda *args: exit(),
    lambda *args: args[2](args[0], None),
    lambda *args: args[3].step(),
]


@pytest.mark.parametrize("exercise", ["production", "survive"])
@pytest.mark.parametrize("junk", JUNK)
def test_junk_gets_a_verdict_and_changes_nothing(exercise, junk):
    dtype, grad, state = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state()
    verdict = judge(exercise, junk)
    assert not verdict.passed
    assert verdict.message
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (dtype, grad)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_untouched_stub_is_not_attempted():
    def production_loop(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
        for _ in windows(batches, n):
            ...

    def stub(model, items, loss_fn, optimizer, size):
        for _ in items.split(size):
            ...

    assert judge("production", production_loop).bug == "not-attempted"
    assert judge("survive", stub).bug == "not-attempted"


@pytest.mark.mutations
def test_small_changes_to_a_right_survivor_are_rejected():
    passed = [change for change, mutant in mutants(survive) if judge("survive", mutant).passed]
    assert len(passed) == 1, "\n\n".join(passed)
    assert "if size <= 1" in passed[0]  # no size is below 1


OTHERS = (  # epochs that the judge does not use
    capstone._Epoch((0, 0, 3, 1), 2, dirty=True),
    capstone._Epoch((0, 4, 1, 0, 2), 3, capstone._TIGHT, overflow=4, dirty=True),
    capstone._Epoch((1, 2, 3, 4, 3, 2, 1), 3, overflow=0),
    capstone._Epoch((4, 0, 1, 2, 0), 1, capstone._TIGHT),
    capstone._Epoch((2, 3, 0, 0), 2, capstone._TIGHT, scaled=False),
)


@pytest.mark.mutations
def test_small_changes_to_the_right_loop_are_rejected_if_and_only_if_they_change_a_result():
    """Those that pass have the same outcome on epochs that the judge has never seen."""
    right = [capstone._outcome(with_lists, epoch)[0] for epoch in OTHERS]
    passed = 0
    for change, mutant in mutants(with_lists):
        if judge("production", mutant).passed:
            passed += 1
            for epoch, wanted in zip(OTHERS, right, strict=True):
                found, _ = capstone._outcome(mutant, epoch)
                assert capstone._same(found, wanted), f"{epoch}: {change}"
                assert epoch.overflow >= 0 or found.losses == pytest.approx(wanted.losses), f"{epoch}: {change}"
    assert 0 < passed < 20
