"""The exercise of *frameworks* on paper: what an update holds in three frameworks' loops."""

from collections.abc import Iterator

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

N, MICRO_BATCHES = 4, 10
TOKENS = (10, 20, 30, 40)  # of the micro-batches of a window
RANKS, TOTAL = 2, 160

_FABRIC_STEPS = [k for k in range(MICRO_BATCHES) if k % N == 0]
_TAIL = MICRO_BATCHES % N

WANT = {
    "first": _FABRIC_STEPS[0] + 1,
    "lost": MICRO_BATCHES - 1 - _FABRIC_STEPS[-1],
    "tail": _TAIL / N,
    "token": sum(TOKENS) / (N * TOKENS[0]),
    "factor": N * RANKS / TOTAL,
}


def _slips() -> Iterator[Slip]:
    yield Slip("counted-from-one", "iterations are counted from 0, and 0 % 4 is 0", {"first": N, "lost": _TAIL})
    yield Slip("irregular-window", "an update holds what came since the step before it", {"first": 0, "lost": 0})
    yield Slip("tail-as-full", "backward divides by 4, and only 2 micro-batches are there", {"tail": 1.0})
    yield Slip("inverted", "it is the other way round", {name: 1 / WANT[name] for name in ("tail", "token", "factor")})
    yield Slip("not-a-ratio", "that is its weight; compare it with the fair share", {"token": 1 / (N * TOKENS[0])})
    yield Slip("token-weights", "a mean of means gives each micro-batch a quarter", {"token": 1.0})
    yield Slip("divisor-not-undone", "backward divides by 4 all the same", {"factor": RANKS / TOTAL})
    yield Slip("one-average-missing", "DDP takes the mean over the ranks", {"factor": N / TOTAL})
    yield Slip("divisor-not-undone", "two things divide after you: backward and DDP", {"factor": 1 / TOTAL})
    yield Slip("own-rank", "the count is that of both ranks together", {"factor": N / (TOTAL / RANKS) * RANKS})


@exercise(
    "updates_on_paper",
    notebook="frameworks",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank with a number.",
        "counted-from-one": "Write down k, k % 4 and whether the loop steps, for k from 0 to 9.",
        "irregular-window": "Mark the steps in a row of ten micro-batches. What is before the first, after the last?",
        "tail-as-full": "Add up what each of the last two micro-batches counts in the update.",
        "inverted": "Is the update too large or too small? Does the token count more than its share, or less?",
        "not-a-ratio": "The fair share is 1/100. How many of those is your number?",
        "token-weights": "How much of the update belongs to the first micro-batch, and how many tokens share that?",
        "divisor-not-undone": "Follow one token's loss: your factor, then backward's division, then DDP's mean.",
        "one-average-missing": "After backward has divided, what do two ranks do with their gradients?",
        "own-rank": "160 is the count over both ranks. Use it as it is.",
        "wrong-value": "Take one blank at a time, and write down every micro-batch of the update.",
    },
)
def _updates_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return "one micro-batch at first and one lost, a tail of half its size, 2.5 fair shares, and 4 * 2 / 160."
