"""The exercises of notebook 11: a test over shares; a loop in which one bug hides another."""

from course_utils.exercises.judging import exercise, same, truth
from course_utils.exercises.loop import loops_agree, twice

EQUAL, TAIL = (2,) * 12, (2,) * 11
CASES = [
    *(twice(sizes, n=n, max_norm=100.0) for sizes, n in ((EQUAL, 4), (TAIL, 4), (EQUAL, 1), (TAIL, 100))),
    twice(EQUAL, n=4, max_norm=100.0, old_gradient=True),
    *(twice(TAIL, n=n, max_norm=0.1) for n in (1, 4, 100)),
]


@exercise("N = 1, 4 and 100, short windows, old gradients, two limits: every window is its own mean, clipped once.")
def two_bugs(answer):
    loops_agree(answer, CASES)


Q = 1 / 4
TABLES = (  # the bug of a test that is wrong on it, what it is, and how much each micro-batch counts in each update
    ("accuses-correct-loops", "two windows of four", [[Q] * 4 + [0] * 4, [0] * 4 + [Q] * 4]),
    ("accuses-correct-loops", "windows of four and one", [[Q] * 4 + [0], [0] * 4 + [1]]),
    ("accuses-correct-loops", "a window for each micro-batch", [[1, 0], [0, 1]]),
    ("accuses-correct-loops", "one window, weighted by samples", [[0.5, 0.25, 0.125, 0.125]]),
    ("accuses-rounded-sums", "a window of six", [[1 / 6] * 6]),  # they add up to 0.9999999999999999
    ("misses-wrong-sums", "windows of four that aren't divided", [[1] * 4 + [0] * 4, [0] * 4 + [1] * 4]),
    ("misses-wrong-sums", "a short window, divided by four", [[Q] * 4 + [0], [0] * 4 + [Q]]),
    ("misses-wrong-sums", "windows of six and two, divided by four", [[Q] * 6 + [0] * 2, [0] * 6 + [Q] * 2]),
    ("misses-lost-data", "the last micro-batch in no update", [[Q] * 4 + [0] * 5, [0] * 4 + [Q] * 4 + [0]]),
    ("misses-lost-data", "only the last micro-batch of each window", [[0, 0, 0, 1] + [0] * 4, [0] * 7 + [1]]),
    ("misses-stale-data", "the first window's four again in the second", [[Q] * 4 + [0] * 4, [1 / 8] * 8]),
)
HINT = "What does each row of a correct table add up to, in floats? In how many rows is each micro-batch?"


@exercise("your test accepts 5 correct tables, with short windows and unequal shares, and refuses 6 wrong ones.")
def is_correct(answer):
    for bug, what, table in TABLES:
        said = truth(answer([[float(share) for share in row] for row in table]))
        same(f"{what}: is_correct({table})", said, bug.startswith("accuses"), bug, HINT)
