"""A loop that never ends is stopped, wherever it stands; everything is then as it was."""

# ruff: noqa: SIM105

import itertools
import subprocess
import sys
import threading
import time

import pytest
import torch

from course_utils.practice.deadline import Deadline, Endless
from course_utils.practice.exercises import judge

LIMIT = 0.1


def empty(*_):
    while True:
        pass


def of_torch(*_):
    while True:
        torch.ones(8).sum()


def of_backward(*_):
    w = torch.ones(8, requires_grad=True)
    while True:
        w.sum().backward()


def generator(*_):
    while True:
        yield 1.0


def catches_exceptions(*_):
    end = time.monotonic() + 10  # so that the test fails, and does not hang, should the stop be caught
    while time.monotonic() < end:
        try:
            sum(range(1000))
        except Exception:
            pass


def catches_everything(*_):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            time.sleep(0.001)
        except:  # noqa: E722
            pass


def catches_everything_twice(*_):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            catches_everything()
        except:  # noqa: E722
            pass


def without_grad(*_):
    with torch.no_grad():
        while True:
            torch.ones(8)


def in_a_hook(*_):
    w = torch.ones(1, requires_grad=True)
    w.register_hook(empty)
    w.sum().backward()


def recursion_of_two(*_):
    while True:
        try:
            empty()
        except Exception:
            empty()


LOOPS = [
    empty, of_torch, of_backward, catches_exceptions, catches_everything, catches_everything_twice,
    without_grad, in_a_hook, recursion_of_two,
]  # fmt: skip


@pytest.mark.parametrize("answer", LOOPS)
@pytest.mark.parametrize("exercise", ["forgotten", "slope"])
def test_a_loop_that_never_ends_is_stopped_and_named(exercise, answer):
    random_state, threads = torch.get_rng_state(), threading.active_count()
    start = time.monotonic()
    verdict = judge(exercise, answer, limit=LIMIT)
    assert time.monotonic() - start < 5
    assert verdict.bug == "endless"
    assert verdict.message.startswith("stopped: it was still running after 0.1 seconds, in line ")
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert sys.gettrace() is None or "coverage" in sys.modules
    for _ in range(100):  # the thread that waited has gone
        if threading.active_count() <= threads:
            break
        time.sleep(0.01)
    assert threading.active_count() <= threads


def test_the_line_that_was_running_is_shown():
    assert judge("slope", empty, limit=LIMIT).message.endswith(("`while True:`.", "`pass`."))


def test_a_generator_that_never_ends_is_stopped_where_it_is_read_without_an_end():
    with pytest.raises(Endless), Deadline(LIMIT):
        list(itertools.filterfalse(None, generator()))


def test_in_another_thread_than_the_first():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(judge("slope", empty, limit=LIMIT)))
    thread.start()
    thread.join(timeout=5)
    assert [verdict.bug for verdict in verdicts] == ["endless"]


def test_a_block_that_ends_in_time_hears_nothing():
    for seconds in (0.0, 1e-5, 1e-4, 1e-3):  # the time is over while the block begins, runs, ends
        for _ in range(200):
            try:
                with Deadline(seconds):
                    pass
            except Endless:
                pass
            sum(range(100))  # were one still on its way, it would be raised here


def test_an_interrupt_from_the_keyboard_goes_through():
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge("slope", interrupted)


def test_the_deadline_costs_no_more_than_starting_a_thread():
    def seconds(guarded):
        start = time.perf_counter()
        for _ in range(50):
            if guarded:
                with Deadline(20):
                    pass
        return (time.perf_counter() - start) / 50

    assert min(seconds(guarded=True) for _ in range(5)) < 2e-3


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_is_left_that_a_profiler_would_hang_on(ends):
    """CPython 3.11 goes round for ever in a profiled function if a stop was withdrawn that has not arrived."""
    code = f"""
import sys, time
from course_utils.practice.deadline import Deadline, Endless
try:
    with Deadline(0.05):
        while not {ends}:
            pass
except Endless:
    pass
calls = []
def step():
    return 1
sys.setprofile(lambda frame, event, argument: calls.append(event))
for _ in range(10):
    step()
sys.setprofile(None)
print(calls.count("call"))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(run.stdout) >= 10
