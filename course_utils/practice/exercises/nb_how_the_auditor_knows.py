"""The exercise of *how the auditor knows* that asks for a test of loops: the zoo grades it."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.grading import grade_on_zoo


@exercise(
    "write_the_test",
    notebook="how_the_auditor_knows",
    hints={
        "misses-stale-gradients": "What do the counts show if a gradient is used twice? Look at each optimizer.",
        "misses-discarded-gradients": "Compare how many gradients arrived with how many the steps used.",
        "misses-leftover-gradients": "What is still in `.grad` when the loop has ended, or an epoch has?",
        "false-alarm": "A short last window is no bug. What is true of every correct loop, whatever its windows?",
        "wrong-type": "True means that the loop is buggy, False that it is not.",
    },
)
def _write_the_test(answer: Callable) -> str:
    loops = grade_on_zoo(answer, ("stale-gradients", "discarded-gradients", "leftover-gradients"))
    return f"your checker finds each of {loops} public bugs of three kinds, and accuses none of the fixed loops."
