"""The exercise of *how the auditor knows* that asks for a test of loops: the zoo grades it."""

from collections.abc import Callable

from course_utils.exercises.bench import Exercise, Seen
from course_utils.exercises.grading import grade_on_zoo

RULES = ("stale-gradients", "discarded-gradients", "leftover-gradients")


def watch(checker: Callable, _: None) -> Seen:
    loops = grade_on_zoo(checker, RULES)
    return {
        "passed": f"your checker finds each of {loops} public bugs of three kinds, and accuses none of the fixed loops."
    }


WRITE_THE_TEST = Exercise("write_the_test", "how_the_auditor_knows", watch)
