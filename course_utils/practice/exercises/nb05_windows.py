"""The exercise of notebook 05: accumulation over windows that may be short, of micro-batches of any size."""

from course_utils.loops import windows
from course_utils.practice.bench import Exercise
from course_utils.practice.loop import twice, watch_loop

EQUAL, RAGGED, REAL = (2,) * 6, (4, 2, 1, 3, 2), (4, 4, 4, 2, 3)


def solution(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in windows(batches, n):
        samples = sum(len(batch) for batch in window)
        for batch in window:
            loss = loss_fn(model, batch) * (len(batch) / samples)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


ACCUMULATE = Exercise(
    "accumulate",
    "05_windows",
    watch_loop,
    solution,
    cases=[
        # Equal sizes come first: a lost tail, or one that is divided by N, then shows as itself. Six come first: with
        # N = 2 a third window tells a counter that is never set back from a last window that gets no step.
        *(twice(sizes, n) for n in (2, 4, 1, 100) for sizes in (EQUAL, EQUAL[:4])),
        *(twice(RAGGED, n) for n in (2, 4, 1, 100)),
        twice(EQUAL[:4], 2, dirty=True),
        *(twice(REAL, n, real=True, adam=adam) for n in (2, 4, 1, 100) for adam in (False, True)),
    ],
)
