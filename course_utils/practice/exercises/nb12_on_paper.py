"""The exercise of notebook 12 on paper: the shares that bugs leave in an update, and the norm that reaches a step."""

from collections.abc import Iterator

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

TOKENS = [10, 10, 20, 60, 15, 5]  # of the micro-batches of an epoch
N = 4
NORM, MAX_NORM, SCALE = 2.0, 0.5, 1024.0

_LAST = TOKENS[N:]
_SECOND_RANK = TOKENS[2:N]

WANT = {
    "total": float(N),
    "tail": 1 / N,
    "right": _LAST[0] / sum(_LAST),
    "rank": _SECOND_RANK[1] / sum(_SECOND_RANK) / 2,
    "norm": MAX_NORM / SCALE,
}


def _slips() -> Iterator[Slip]:
    full = sum(TOKENS[:N])
    yield Slip("divided", "nothing divides in this loop", {"total": 1.0, "tail": 1 / len(_LAST)})
    yield Slip("counts-tokens", "each loss is a mean already, and its gradient counts once", {"total": float(full)})
    yield Slip("token-weights", "that gives both micro-batches of the tail the same", {"right": 1 / len(_LAST)})
    yield Slip("token-weights", "the loop doesn't look at tokens", {"tail": WANT["right"], "total": float(len(TOKENS))})
    yield Slip("token-weights", "tokens and N both divide here", {"tail": WANT["right"] / N})
    yield Slip("other-window", "divide by what its own update holds", {
        "right": lambda got: any(abs(got - _LAST[0] / total) < 1e-6 for total in (full, sum(TOKENS))),
    })  # fmt: skip
    yield Slip("no-average", "DDP divides by the number of ranks", {"rank": 2 * WANT["rank"]})
    yield Slip("global-tokens", "that is its share of all tokens; each rank knows only its own", {
        "rank": lambda got: any(abs(got - TOKENS[N - 1] / total) < 1e-6 for total in (full, 2 * full)),
    })  # fmt: skip
    yield Slip("unscaled", "the limit was applied while the scale was in the gradient", {"norm": MAX_NORM})
    yield Slip("unscaled", "the scaled gradient was far over the limit, so it was clipped", {
        "norm": lambda got: any(abs(got - wrong) < 1e-9 for wrong in (NORM, NORM / SCALE, MAX_NORM / NORM)),
    })  # fmt: skip
    yield Slip("unscaled", "the step divides by the scale", {"norm": MAX_NORM * SCALE})


@exercise(
    "shares_on_paper",
    notebook="12_project",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank with a number; `1 / 3` is one.",
        "wrong-value": "Is it rounded? Write `0.1 / 3` rather than a decimal, and go through the window once more.",
        "divided": "Write down what the loop adds to `.grad`, micro-batch by micro-batch.",
        "counts-tokens": "How often is the gradient of each mean loss added?",
        "token-weights": "Which of the two loops looks at tokens, the one in the question or the correct one?",
        "other-window": "How many tokens are in micro-batches 5 and 6 together?",
        "no-average": "Follow micro-batch 4: its share on its own rank, then what DDP does.",
        "global-tokens": "How many tokens does rank 1 hold, and by what does it divide?",
        "unscaled": "Multiply by the scale, clip, divide by the scale.",
    },
)
def _shares_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return "a sum of 4, a quarter for each of the tail's two, 15/20 where it is right, 60/160 for 60/100, and 0.5/1024."
