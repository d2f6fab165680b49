"""The exercise of notebook 05: windows that may be short, of micro-batches of any size."""

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree, twice
from course_utils.loops import windows

EQUAL, RAGGED, REAL = (2,) * 6, (4, 2, 1, 3, 2), (4, 4, 4, 2, 3)
CASES = [
    # Equal sizes come first: a lost tail, or one that is divided by N, then shows as itself. Six
    # come first: with N = 2 a third window tells a counter that is never set back from a last
    # window that gets no step.
    *(twice(sizes, n) for n in (2, 4, 1, 100) for sizes in (EQUAL, EQUAL[:4])),
    *(twice(RAGGED, n) for n in (2, 4, 1, 100)),
    twice(EQUAL[:4], 2, dirty=True),
    *(twice(REAL, n, real=True, adam=adam) for n in (2, 4, 1, 100) for adam in (False, True)),
]


def solution(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in windows(batches, n):
        samples = sum(len(batch) for batch in window)
        for batch in window:
            loss = loss_fn(model, batch) * (len(batch) / samples)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@exercise(stage="05")
def accumulate(answer):
    loops_agree(answer, solution, CASES)
    return (
        "N = 1, 2, 4 and more than an epoch has, short windows, unequal micro-batches, old gradients, SGD and Adam: "
        "every sample counts as in the large batch."
    )
