"""A judge tries what tests/answers/tried.txt says; `python tests/tried.py` writes it after a change that is meant."""

import pytest
from tried import FILE, WATCHED, tried


@pytest.mark.parametrize("exercise", WATCHED)
def test_a_judge_tries_what_is_written_down(exercise):
    assert f"\n{exercise}\n{tried(exercise)}\n" in f"\n{FILE.read_text(encoding='utf-8')}\n"
