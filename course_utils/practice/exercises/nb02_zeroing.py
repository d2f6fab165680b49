"""The loops of notebooks 00 and 02, with one update per batch; that of 02 from any start."""

from course_utils.practice.bench import Exercise
from course_utils.practice.loop import twice, watch_loop


def solution(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


CASES = [
    *(twice(sizes, words="batches") for sizes in ((2,) * 6, (2,) * 4, (4, 2, 1, 3, 2))),
    *(twice((4, 4, 4, 2, 3), real=True, adam=adam, words="batches") for adam in (False, True)),
]
FIRST_LOOP = Exercise("first_loop", "00_start", watch_loop, solution, CASES)
TRAIN = Exercise("train", "02_zeroing", watch_loop, solution, [*CASES, twice((2,) * 4, dirty=True, words="batches")])
