"""The guard around the observer's code; for a whole audit see tests/audit/test_failures.py."""

import pytest
import torch

from gradaudit.observe.guard import Guard, ObserverFailure


def watched(function):
    """A guard, a function that it watches and hands on, and what the watch has noted."""
    guard, noted = Guard("The auditor", "your script goes on unwatched"), []

    def watch(*args, **kwargs):
        noted.append("before")
        try:
            yield
            noted.append("after")
        finally:
            noted.append("end")

    return guard, guard.around(watch)(lambda *args: function(guard, *args)), noted


def test_a_call_is_watched_before_and_after_and_its_error_goes_through():
    guard, call, noted = watched(lambda _, x: 1 / x)
    assert call(1) == 1
    assert noted == ["before", "after", "end"]
    with pytest.raises(ZeroDivisionError):
        call(0)
    assert noted[3:] == ["before", "end"]
    assert guard.failure is None


def test_a_failure_inside_the_call_closes_the_watch_around_it():
    guard, call, noted = watched(lambda guard: guard(lambda: 1 / 0)())
    with pytest.warns(ObserverFailure, match="The auditor has failed .ZeroDivisionError"):
        call()
    assert noted == ["before", "end"]
    call()
    assert noted == ["before", "end"]
    assert guard.failure.startswith("ZeroDivisionError: division by zero, at ")


def test_a_watch_may_let_a_call_pass():
    guard = Guard("The auditor", "your script goes on unwatched")
    assert guard.around(lambda: (each for each in ()))(lambda: 3)() == 3
    assert guard.failure is None


@pytest.mark.parametrize("given", [torch.ones(2), [1, 2], iter([1, 2])], ids=["a tensor", "a list", "an iterator"])
def test_what_the_watch_goes_through_is_there_for_the_call_too(given):
    guard, seen = Guard("The auditor", "your script goes on unwatched"), []

    def watch(things):
        seen.append(list(things))
        yield

    call = guard.around(watch, used_up=True)(lambda things: things)
    made = call(things=given)
    assert list(made) == seen[0]
    assert made is given or made == [1, 2]
    assert guard.failure is None


def test_an_error_without_words_or_with_too_many_is_told_in_one_line():
    class Silent(Exception):
        def __str__(self):
            raise ValueError

    for error in (Silent(), ValueError("many\n" * 1_000)):
        guard = Guard("The auditor", "your script goes on unwatched")
        with pytest.warns(ObserverFailure) as caught:
            guard(_raise)(error)
        assert len(str(caught[0].message)) < 700
        assert "\n" not in guard.failure


def _raise(error):
    raise error
