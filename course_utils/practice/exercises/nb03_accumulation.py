"""The exercise of notebook 03: accumulation over full windows of equal micro-batches."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop_on_model, judge_updates, sgd


@exercise("accumulate_equal")
def _accumulate_equal(answer: Callable) -> str:
    for n in (2, 4, 1):
        judge_updates(answer, (2,) * 4 * n, n)
    judge_updates(answer, (2, 2, 2, 2), 2, dirty=True)
    for n in (2, 4):
        judge_loop_on_model(answer, sgd, n, sizes=(4,) * 8)
    return "N = 1, 2 and 4, a clean and a dirty start, a tally and a real model: every window is the large batch."
