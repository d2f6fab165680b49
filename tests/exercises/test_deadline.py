"""Nothing that an answer does leaves the judge: it is stopped, and everything is as before."""

import os
import signal
import threading
import time
from functools import partial

import pytest
import torch

from course_utils.exercises import judge
from course_utils.exercises.deadline import Endless, run


def empty(*_):
    while True:
        pass


def catches_everything(*_):
    while True:
        try:
            time.sleep(0.001)
        except:  # noqa: E722
            continue


def in_a_hook_without_grad(*_):
    w = torch.ones(1, requires_grad=True)
    w.register_hook(torch.no_grad()(empty))
    w.sum().backward()


def cleans_up_for_ever(*_):
    try:
        empty()
    finally:
        empty()


def sleeps(*_):
    time.sleep(4)


def signals():
    timer = signal.getitimer(signal.ITIMER_REAL)[0] > 1  # that of pytest-timeout
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), timer


@pytest.mark.parametrize("answer", [empty, catches_everything, in_a_hook_without_grad, cleans_up_for_ever, sleeps])
def test_an_answer_that_does_not_end_is_stopped_and_named(answer):
    random_state, before, start = torch.get_rng_state(), signals(), time.monotonic()
    verdict = judge("slope", answer, limit=0.1)
    assert time.monotonic() - start < 3
    assert verdict.bug == "endless"
    assert verdict.message.startswith("stopped: it was still running after 0.1 seconds, in line ")
    assert answer is not sleeps or verdict.message.endswith("`time.sleep(4)`.")
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert signals() == before


def test_in_another_thread_than_the_first_answers_are_judged_without_a_limit():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(judge("slope", lambda f, w, h: 0.0, limit=0.1)))
    thread.start()
    thread.join()
    assert [verdict.bug for verdict in verdicts] == ["wrong-value"]


def test_a_stop_never_arrives_after_the_call():
    """Time is up as the function ends, or just before or after; a late stop would show here."""

    def busy(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return "done"

    stopped = 0
    for early in [0.9, 0.98, 1.0, 1.02, 1.1] * 60:
        try:
            assert run(partial(busy, 1e-3), early * 1e-3) == "done"
        except Endless:
            stopped += 1
        sum(range(100))
    assert 0 < stopped < 300


@pytest.mark.parametrize("error", [SystemExit, KeyError, BaseException])
def test_whatever_is_raised_becomes_a_verdict(error):
    def raises(*_):
        raise error(7)

    verdict, line = judge("slope", raises), raises.__code__.co_firstlineno + 1
    assert (verdict.bug, verdict.message) == ("raises", f"line {line}, `raise error(7)`: {error.__name__}: 7")


@pytest.mark.parametrize(("answer", "bug"), [(empty, "interrupted"), (catches_everything, "endless")])
def test_the_stop_button_goes_no_further_and_where_the_answer_catches_it_the_limit_ends_it(answer, bug, interruptible):
    presser = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))

    def slope(*_):
        presser.start()
        answer()

    verdict = judge("slope", slope, limit=2.0)
    presser.join()
    assert verdict.bug == bug
    assert verdict.message.startswith("stopped")
    assert ", in line " in verdict.message
