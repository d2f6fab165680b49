"""The exercise of *rewards and packing* on paper: by what four losses divide one token of a window of three answers."""

from collections.abc import Iterator

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

MICRO_BATCHES = ((2, 6), (10,))  # the tokens of each answer; all answers are to one prompt
LONGEST = 16

_ANSWERS = [tokens for batch in MICRO_BATCHES for tokens in batch]
_ALL, _MANY, _N = sum(_ANSWERS), len(_ANSWERS), len(MICRO_BATCHES)
_LAST = _ANSWERS[-1]

WANT = {
    "token_mean": _ALL,
    "sequence_mean": _MANY * _LAST,
    "constant": _MANY * LONGEST,
    "loop": _N * _LAST,
}


def _slips() -> Iterator[Slip]:
    yield Slip(
        "own-micro-batch",
        "that counts the last micro-batch alone, and the window holds more",
        {"token_mean": _LAST, "sequence_mean": _LAST, "constant": LONGEST},
    )
    yield Slip(
        "n-instead-of-answers",
        "a published formula knows nothing of micro-batches, so N is not in it",
        {"token_mean": _N * _LAST, "sequence_mean": _N * _LAST, "constant": _N * LONGEST},
    )
    yield Slip("n-missing", "the loop divides once more, by N", {"loop": _LAST})
    yield Slip("as-published", "that is the formula over the window, which the loop does not see", {"loop": _ALL})
    yield Slip("as-published", "the loop takes a token mean, and counts no answers", {"loop": _MANY * _LAST})
    yield Slip("wrong-answer", "the last answer is meant, with its own length",
               {"sequence_mean": lambda got: got in {_MANY * tokens for tokens in _ANSWERS[:-1]}})  # fmt: skip
    yield Slip("mean-length", "that is the mean length, and not the number of tokens", {"token_mean": _ALL / _MANY})
    yield Slip("no-answers", "that counts tokens where the formula has a constant", {"constant": _ALL})
    yield Slip("both", "the constant replaces the number of tokens", {"constant": LONGEST * _ALL})
    yield Slip("inverted", "that is the weight; write what it is divided by", {k: 1 / v for k, v in WANT.items()})


@exercise(
    "divisors_on_paper",
    notebook="rewards_and_packing",
    takes=dict,
    hints={
        "own-micro-batch": "One large batch has no micro-batches. What would be in it?",
        "n-instead-of-answers": "How many answers does the window hold, and how many micro-batches?",
        "n-missing": "Follow one token: first the mean of its own micro-batch, then what the loop does with it.",
        "as-published": "The loop never sees the window. What does it know when the last micro-batch comes?",
        "wrong-answer": "The last answer is the only one of its micro-batch. How many tokens has it?",
        "mean-length": "A token mean divides the sum over all tokens by how many there are.",
        "no-answers": "Look at the row of Dr. GRPO in Step 1: which two numbers does it multiply?",
        "both": "Look at the row of Dr. GRPO in Step 1: which two numbers does it multiply?",
        "inverted": "A token that counts 1/40 has a loss that is divided by 40.",
        "wrong-value": "Write down three numbers first: all tokens, all answers, and the tokens of the last answer.",
    },
)
def _divisors_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return "18 tokens, 3 answers times 10 tokens, 3 answers times 16; and the loop divides by 10 tokens and by N = 2."
