"""A judge tries what tests/answers/tried.txt says; `python tests/tried.py` writes it after a change that is meant."""

import pytest
from tried import FILE, WATCHED, tried

WRITTEN = dict(entry.split("\n", 1) for entry in FILE.read_text(encoding="utf-8").rstrip("\n").split("\n\n"))


@pytest.mark.parametrize("exercise", WRITTEN)
def test_a_judge_tries_what_is_written_down(exercise):
    assert tried(exercise).rstrip("\n") == WRITTEN[exercise]


def test_what_is_written_down_are_exercises_and_most_of_them():
    assert set(WRITTEN) <= set(WATCHED)
    assert len(WRITTEN) > 0.9 * len(WATCHED)  # a new one may be written down later
