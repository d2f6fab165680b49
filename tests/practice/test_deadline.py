"""Nothing that an answer does leaves the judge: it is stopped wherever it stands, and everything is then as it was."""

# ruff: noqa: SIM105

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
import torch

from course_utils.practice import deadline
from course_utils.practice.deadline import Endless, run
from course_utils.practice.exercises import judge

LIMIT = 0.1


def empty(*_):
    while True:
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


def cleans_up_for_ever(*_):
    try:
        empty()
    finally:
        empty()


def leaves_a_block_for_ever(*_):
    class Block:
        def __enter__(self):
            empty()

        def __exit__(self, *_):
            empty()

    with Block():
        pass


LOOPS = [
    empty, catches_everything_twice, without_grad, in_a_hook, cleans_up_for_ever, leaves_a_block_for_ever,
]  # fmt: skip


@pytest.mark.parametrize("answer", LOOPS)
def test_a_loop_that_never_ends_is_stopped_and_named(answer):
    random_state, threads = torch.get_rng_state(), threading.active_count()
    start = time.monotonic()
    verdict = judge("slope", answer, limit=LIMIT)
    assert time.monotonic() - start < 5
    assert verdict.bug == "endless"
    assert verdict.message.startswith("stopped: it was still running after 0.1 seconds, in line ")
    assert answer is not empty or verdict.message.endswith(("`while True:`.", "`pass`."))
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert sys.gettrace() is None or "coverage" in sys.modules
    for _ in range(100):  # the thread that waited has gone
        if threading.active_count() <= threads:
            break
        time.sleep(0.01)
    assert threading.active_count() <= threads


def test_in_another_thread_than_the_first():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(judge("slope", empty, limit=LIMIT)))
    thread.start()
    thread.join(timeout=5)
    assert [verdict.bug for verdict in verdicts] == ["endless"]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stop_never_arrives_after_the_call(monkeypatch):
    """The time is over when the function ends, or just before or after; a late stop would be raised in this test."""
    monkeypatch.setattr(deadline, "_SLICE", 1e-5)
    stopped, interval = 0, sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the threads take turns as often as they can

    def busy(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return "done"

    try:
        for seconds in (0.0, 1e-4, 1e-3):
            for early in (0.9, 0.98, 1.0, 1.02, 1.1):
                for _ in range(60):
                    outcome = run(partial(busy, seconds), seconds * early)
                    assert (outcome.value == "done") == (outcome.error is None)
                    assert outcome.error is None or isinstance(outcome.error, Endless)
                    stopped += outcome.stopped == "endless"
                    sum(range(100))
    finally:
        sys.setswitchinterval(interval)
    assert 0 < stopped < 900


# Calls into C, which cannot be interrupted.


def sleeps(*_):
    time.sleep(4)


def sleeps_a_little(*_):
    time.sleep(1.0)
    late.append("after the call")


def sleeps_and_catches(*_):
    while True:
        try:
            time.sleep(0.5)
        except:  # noqa: E722
            late.append("caught")


def multiplies(*_):
    a = torch.ones(1500, 1500)
    while True:
        a = a @ a


late: list[str] = []


@pytest.mark.parametrize("answer", [sleeps, multiplies])
def test_a_call_into_c_that_outlives_the_limit_is_named_and_its_line_shown(answer):
    verdict = judge("slope", answer, limit=LIMIT)
    assert verdict.bug == "endless"
    assert {sleeps: "`time.sleep(4)`", multiplies: "`"}[answer] in verdict.message
    assert ("cannot interrupt" in verdict.message) == (answer is sleeps), verdict.message
    wait_for_the_thread_that_goes_on()
    for _ in range(100):  # what comes late would be raised here
        sum(range(1000))


def wait_for_the_thread_that_goes_on():
    """Ends when the answer has ended for which nobody waited."""
    for thread in threading.enumerate():
        if thread.name == "pursue":
            thread.join(timeout=20)
            assert not thread.is_alive()


def test_what_nobody_waits_for_ends_when_its_call_returns(monkeypatch):
    monkeypatch.setattr(deadline, "_PATIENCE", 0.2)
    late.clear()
    assert judge("slope", sleeps_a_little, limit=LIMIT).message.endswith("ends when that call returns.")
    assert "pursue" in [thread.name for thread in threading.enumerate()]
    wait_for_the_thread_that_goes_on()
    assert late == []


def test_a_loop_that_catches_every_stop_at_a_call_into_c_is_stopped():
    late.clear()
    assert judge("slope", sleeps_and_catches, limit=LIMIT).bug == "endless"
    wait_for_the_thread_that_goes_on()
    caught = len(late)
    time.sleep(1.2)
    assert len(late) == caught


# What is no error of a program.


class NoException(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, NoException, Endless])
def test_whatever_is_raised_becomes_a_verdict(error):
    def raises(*_):
        raise error("as it says")

    verdict, line = judge("slope", raises), raises.__code__.co_firstlineno + 1
    assert verdict.bug == "raises"
    assert verdict.message == f'line {line}, `raise error("as it says")`: {error.__name__}: as it says'


# The stop button.


@pytest.mark.parametrize(
    ("answer", "presses"), [(empty, 1), (catches_everything_twice, 1), (sleeps_a_little, 1), (sleeps_a_little, 3)]
)
def test_an_interrupt_stops_the_answer_and_goes_no_further(answer, presses, interruptible):
    def press():
        for _ in range(presses):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

    def slope(*_):
        presser.start()
        answer()

    presser = threading.Thread(target=press)
    before = signal.getsignal(signal.SIGINT)
    verdict = judge("slope", slope, limit=30.0)
    assert verdict.bug == "interrupted"
    assert verdict.message.startswith("stopped by you, in line ")
    assert signal.getsignal(signal.SIGINT) is before
    presser.join()


# The clock.


def test_importing_does_not_count(tmp_path, monkeypatch):
    """A cold start imports for seconds, such as all that an optimizer's first step needs."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(1.5)\n")
    monkeypatch.syspath_prepend(tmp_path)

    calls = []

    def slope(f, w, h):
        import slow_to_import  # noqa: F401

        calls.append(w)
        if len(calls) == 1:
            time.sleep(0.5)
        return (f(w + h) - f(w - h)) / (2 * h)

    assert judge("slope", slope, limit=1.0).passed


def test_in_a_new_process_the_first_call_is_in_time_and_nothing_is_left_that_a_profiler_would_hang_on():
    """CPython 3.11 goes round for ever in a profiled function if a stop was withdrawn that has not arrived."""
    code = """
import sys
from course_utils.practice.exercises import judge
def train(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
def empty(*_):
    while True:
        pass
print(judge("train", train, limit=3.0))  # imports for longer than that on a slow machine
for answer in (empty, train):
    calls = []
    print(judge("train", answer, limit=0.2).bug)
    def step():
        return 1
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    for _ in range(10):
        step()
    sys.setprofile(None)
    print(calls.count("call") >= 10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    first, *rest = done.stdout.splitlines()
    assert first.startswith("Verdict(bug='', "), first
    assert rest[:2] == ["endless", "True"]
    assert rest[3] == "True"
