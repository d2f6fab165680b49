"""The exercise of *should you accumulate* on paper: what a card, a recipe and a noise scale say about a window."""

from collections.abc import Iterator

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

CARD, WEIGHTS, ACTIVATIONS = 24e9, 1e9, 0.5e9  # bytes, weights, bytes per sequence
RECIPE, NOISE_SCALE, BETA2 = 512, 128, 0.95  # sequences, sequences
STATES = 4 * 4  # bytes per weight: weights, gradients and two averages in float32

_FITS = (CARD - STATES * WEIGHTS) / ACTIVATIONS

WANT = {
    "micro_batch": _FITS,
    "N": RECIPE / _FITS,
    "share": 1 / (1 + RECIPE / NOISE_SCALE),
    "beta2": BETA2 ** (_FITS / RECIPE),
    "N_of_2e9": None,
}


def _slips() -> Iterator[Slip]:
    for kept in (0, 4, 8, 12):
        fits = (CARD - kept * WEIGHTS) / ACTIVATIONS
        hint = f"that leaves room for {kept} bytes per weight; count weights, gradients and both averages"
        yield Slip("forgets-states", hint, {
            "micro_batch": fits, "N": RECIPE / fits, "beta2": BETA2 ** (fits / RECIPE),
        })  # fmt: skip
    yield Slip("counts-samples", "N counts micro-batches, not sequences", {"N": float(RECIPE)})
    yield Slip("upside-down", "that is what the batch wastes, not what a sequence gives", {
        "share": 1 - WANT["share"],
    })  # fmt: skip
    yield Slip("no-formula", "the formula is 1 / (1 + batch / noise scale)", {"share": NOISE_SCALE / RECIPE})
    yield Slip("unchanged", "then it forgets 32 times sooner in sequences", {"beta2": BETA2})
    yield Slip("wrong-way", "smaller batches need a beta2 nearer to 1", {"beta2": BETA2 ** WANT["N"]})
    yield Slip("divides-the-rest", "dividing 1 - beta2 comes near, but the root keeps the half-life exactly", {
        "beta2": 1 - (1 - BETA2) / WANT["N"],
    })  # fmt: skip
    yield Slip("no-N-helps", "how many bytes do the states of 2e9 weights take, whatever N is", {
        "N_of_2e9": lambda got: got is not None,
    })  # fmt: skip


@exercise(
    "decide_on_paper",
    notebook="should_you_accumulate",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank; None is an answer, too.",
        "forgets-states": "Four numbers per weight, four bytes each. What is left of the card goes to activations.",
        "counts-samples": "How many micro-batches make 512 sequences?",
        "upside-down": "At a batch far above the noise scale, does a sequence give much or little?",
        "no-formula": "Put B = 512 and the noise scale 128 into Step 7's formula.",
        "unchanged": "How many updates now read what one update read before?",
        "wrong-way": "After 32 small updates as much must be left as after a large one.",
        "divides-the-rest": "Which number, multiplied 32 times by itself, gives 0.95?",
        "no-N-helps": "Does the micro-batch appear in the states' bytes?",
        "wrong-value": "Begin with the bytes that do not depend on the micro-batch. And is a number rounded?",
    },
)
def _decide_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return "16 fit beside 16 GB of states, so N = 32; a sequence gives a fifth; the 32nd root; and no N for 32 GB."
