"""The exercise of notebook 09 on paper: what a log of scales says about the updates of two runs."""

from collections.abc import Iterator
from itertools import pairwise

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

# The scale before each window and at the end, as the notebook shows it, with a growth_interval of 2 in A.
A = [1024, 512, 512, 1024, 512, 512, 1024, 1024, 512]
B = [1] * 9
MICRO_BATCHES = 4  # in each window

_WINDOWS = len(A) - 1
_FALLS = sum(after < before for before, after in pairwise(A))
_GROWS = sum(after > before for before, after in pairwise(A))
_FALLS_INSIDE = sum(after < before for before, after in pairwise(A[:-1]))
_MADE = _WINDOWS - _FALLS

WANT = {
    "overflowed": _FALLS,
    "lost": MICRO_BATCHES * _FALLS,
    "rate": 0.5**_MADE,
    "spike": 0.5 ** (_MADE - 1),
    "updates": len(B) - 1,
}


def _slips() -> Iterator[Slip]:
    changes = _FALLS + _GROWS
    yield Slip("growth", "a scale that grows is no overflow", {
        "overflowed": changes, "lost": MICRO_BATCHES * changes,
        "rate": 0.5 ** (_WINDOWS - changes), "spike": 0.5 ** (_WINDOWS - changes - 1),
    })  # fmt: skip
    seen = _FALLS_INSIDE
    yield Slip("last-window", "the last column belongs to window 8", {
        "overflowed": seen, "lost": MICRO_BATCHES * seen,
        "rate": 0.5 ** (_WINDOWS - seen), "spike": 0.5 ** (_WINDOWS - seen - 1),
    })  # fmt: skip
    yield Slip("one-micro-batch", "what is left out is more than one micro-batch", {"lost": _FALLS})
    yield Slip("every-window", "a window without an update does not step the schedule", {
        "rate": 0.5**_WINDOWS, "spike": 0.5**_WINDOWS,
    })  # fmt: skip
    yield Slip("not-a-rate", "that counts updates", {"rate": _MADE, "spike": _MADE - 1})
    yield Slip("not-a-rate", "each update halves it", {"rate": 1 / _MADE, "spike": 1 / (_MADE - 1)})
    yield Slip("spike-counts", "a window that the loop leaves out makes no update", {"spike": 0.5**_MADE})
    yield Slip("spike-counts", "one update fewer is one halving fewer", {"spike": 0.5 ** (_MADE + 1)})
    yield Slip("switched-off", "a scale of 1 in every window says something about the scaler", {
        "updates": _WINDOWS - 1,
    })  # fmt: skip
    yield Slip("switched-off", "a scale that never falls says that the scaler left nothing out", {"updates": 0})
    yield Slip("switched-off", "a NaN in the weights does not stop the loop", {"updates": 2})
    yield Slip("switched-off", "a NaN in the weights does not stop the loop", {"updates": 3})


@exercise(
    "scales_on_paper",
    notebook="09_amp",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank with a number.",
        "growth": "After how many good windows does A's scaler double its scale, and after what does it halve it?",
        "last-window": "A column is the scale before its window. Where do you see what window 8 did to it?",
        "one-micro-batch": "Step 5: where is the infinity, and what else is there?",
        "every-window": "How many of the eight windows made an update?",
        "not-a-rate": "Begin with 1.0 and halve it once for each update.",
        "spike-counts": "Which windows made an update now? Does the scale of window 4 contradict that?",
        "switched-off": "Step 7: what does a scaler do that is switched off, and who else looks at B's gradients?",
        "wrong-value": "For each window of A: did the scale fall, stay or grow until the next column?",
    },
)
def _scales_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return (
        "3 overflows with 12 micro-batches, 5 updates or 4, which this log cannot tell apart, and 8 updates of a run "
        "whose weights are NaN."
    )
