"""The exercise of notebook 05: windows of micro-batches, of which the last may be short."""

from dataclasses import dataclass

from course_utils.exercises.judging import Seen, compare, exercise
from course_utils.exercises.loop import Case, twice, watch_loop
from course_utils.loops import windows


@dataclass(frozen=True)
class Stream(Case):
    """Micro-batches that come one after the other: no length, no index, no second pass."""

    def more(self) -> str:
        return ", as a stream without a length"


SIX, FOUR, REAL = (2,) * 6, (2,) * 4, (4,) * 5
CASES = [
    # Six come first: with N = 2 a third window tells a counter that is never set back from a last
    # window that gets no step.
    *(twice(sizes, n) for n in (2, 4, 1, 100) for sizes in (SIX, FOUR)),
    twice(FOUR, 2, dirty=True),
    *(twice(REAL, n, real=True, adam=adam) for n in (2, 4, 1, 100) for adam in (False, True)),
    *(twice(SIX, n, kind=Stream) for n in (2, 4)),
]
HINTS = {
    "stale-gradients": "What can be in `.grad` before a window's first backward pass? And does every window hold "
    "micro-batches of its own only? Print them.",
}


def solution(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in windows(batches, n):
        for batch in window:
            loss = loss_fn(model, batch) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def watch(answer, case: Case) -> Seen:
    def streamed(model, batches, *more):
        return answer(model, iter(batches), *more)

    return watch_loop(streamed if isinstance(case, Stream) else answer, case)


@exercise(stage="05")
def accumulate(answer):
    compare(watch, answer, solution, CASES, hints=HINTS)
    return (
        "N = 1, 2, 4 and more than an epoch has, short windows, a stream, old gradients, SGD and Adam: every update is "
        "the mean of what its window holds."
    )
