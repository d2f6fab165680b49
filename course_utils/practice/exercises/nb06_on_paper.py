"""The exercise of notebook 06 on paper: the loss, the weight of a token and the factor of a rank in one update."""

from collections.abc import Iterator

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

RANKS = [[(30, 2.0), (0, None)], [(6, 4.0), (4, 3.0)]]  # valid targets and mean loss of each micro-batch of each rank

_N = len(RANKS[0])
_OWN = [sum(count for count, _ in rank) for rank in RANKS]
_ALL = sum(_OWN)
_FULL = [(count, mean) for rank in RANKS for count, mean in rank if count]
_SUMS = [sum(count * mean for count, mean in rank if count) for rank in RANKS]
_LAST = RANKS[1][1][0]

WANT = {
    "loss": sum(_SUMS) / _ALL,
    "share": _ALL / (_LAST * _N * len(RANKS)),
    "factor": _OWN[0] / _ALL * len(RANKS),
}


def _slips() -> Iterator[Slip]:
    means = [mean for _, mean in _FULL]
    yield Slip("token-weights", "a mean of means counts micro-batches", {"loss": sum(means) / len(means)})
    rank_means = [total / own for total, own in zip(_SUMS, _OWN, strict=True)]
    yield Slip("own-rank", "a mean of the ranks' means counts ranks", {"loss": sum(rank_means) / len(RANKS)})
    yield Slip("own-rank", "the window is what both ranks hold", {"loss": rank_means[0], "factor": 1.0})
    yield Slip("own-rank", "the window is what both ranks hold", {"loss": rank_means[1], "factor": float(len(RANKS))})
    yield Slip("counts-the-empty", "nothing is in the second micro-batch", {"loss": sum(means) / len([*means, 0])})
    yield Slip("no-divisor", "that is a sum over tokens, not a mean", {"loss": sum(_SUMS)})
    yield Slip("nan", "the micro-batch without a target is left out", {"loss": lambda got: got != got})
    yield Slip(
        "one-average-missing",
        "the loop divides by N, and DDP takes the mean over ranks",
        {"share": _ALL / (_LAST * _N), "factor": _OWN[0] / _ALL},
    )
    yield Slip("one-average-missing", "two means are taken after that of the micro-batch", {"share": _ALL / _LAST})
    yield Slip("inverted", "it is the other way round", {"share": 1 / WANT["share"], "factor": 1 / WANT["factor"]})
    yield Slip(
        "not-a-ratio", "that is its weight; compare it with the fair share", {"share": 1 / (_LAST * _N * len(RANKS))}
    )
    yield Slip("divides-by-the-ranks", "DDP has divided already", {"factor": _OWN[0] / _ALL / len(RANKS)})
    yield Slip("n-again", "the share of the tokens replaces the division by N", {"factor": WANT["factor"] * _N})


@exercise(
    "tokens_on_paper",
    notebook="06_tokens",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank with a number.",
        "token-weights": "Turn each mean back into a sum. How many targets do the sums go over?",
        "own-rank": "One large batch has no ranks. What would be in it?",
        "counts-the-empty": "What does a micro-batch without a target add to the sum, and what to the count?",
        "no-divisor": "The loss per token: what do you divide by?",
        "nan": "What is in that micro-batch that should count?",
        "one-average-missing": "Follow one token: the mean of its micro-batch, then what the loop does, then DDP.",
        "inverted": "Does a token of a short micro-batch count more than its fair share, or less?",
        "not-a-ratio": "Its fair share is 1/40. How many of those is your number?",
        "divides-by-the-ranks": "DDP divides the sum of the ranks' gradients. What undoes that?",
        "n-again": "Add up what all tokens of the update count. Is it 1?",
        "wrong-value": "First the sums: count times mean. Then the number of all valid targets.",
    },
)
def _tokens_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return "a loss of 2.4, a token with 2.5 times its fair share, and 30/40 of the tokens times 2 ranks."
