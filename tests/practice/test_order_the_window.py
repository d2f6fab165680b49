"""The lines of notebook 03b that are put in order."""

from course import NOTEBOOKS

from course_utils.practice.exercises.nb03b_order_the_window import LINES


def test_the_notebook_shows_the_lines_that_its_judge_puts_together():
    shown = "\n".join(f"{letter}  {line}" for letter, line in LINES.items())
    assert f"```text\n{shown}\n```" in NOTEBOOKS["03b_windows"].prose
