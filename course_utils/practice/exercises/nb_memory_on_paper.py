"""The exercise of *memory* on paper: how many samples fit into a card."""

from collections.abc import Iterator
from math import ceil

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

CARD, WEIGHTS, ADAPTERS, UPDATE = 1000, 150, 10, 64  # MB, and samples per update
PER_SAMPLE, KEPT, AGAIN, BESIDE_ADAPTERS = 40, 5, 15, 38  # MB
STAYS = {  # sets of numbers as large as the weights: themselves, their gradients and what the optimizer keeps
    "plain": 4 * WEIGHTS,
    "checkpointed": 4 * WEIGHTS,
    "sgd": 2 * WEIGHTS,
    "adapters": WEIGHTS + 4 * ADAPTERS,
}
GROWS = {"plain": PER_SAMPLE, "checkpointed": KEPT + AGAIN, "sgd": PER_SAMPLE, "adapters": BESIDE_ADAPTERS}


def fitting(stays: dict[str, int] = STAYS, grows: dict[str, int] = GROWS) -> dict[str, int]:
    """The samples that fit beside what stays, and the smallest N with them."""
    most = {way: (CARD - stays[way]) // grows[way] for way in stays}
    return {**most, "n": ceil(UPDATE / most["plain"])}


def _slips() -> Iterator[Slip]:
    right = fitting()
    yield Slip("forgets-the-state", "AdamW keeps two numbers for each trained weight", fitting(
        {**dict.fromkeys(STAYS, 2 * WEIGHTS), "adapters": WEIGHTS + 2 * ADAPTERS},
    ))  # fmt: skip
    yield Slip("forgets-gradients", "a window holds a full set of gradients", fitting({
        "plain": 3 * WEIGHTS, "checkpointed": 3 * WEIGHTS, "sgd": WEIGHTS, "adapters": WEIGHTS + 3 * ADAPTERS,
    }))  # fmt: skip
    yield Slip("activations-alone", "the activations share the card with what stays", fitting(dict.fromkeys(STAYS, 0)))
    yield Slip("keeps-a-state", "SGD without momentum keeps nothing between updates", {"sgd": right["plain"]})
    yield Slip("one-state-for-sgd", "that would be SGD with momentum", {"sgd": (CARD - 3 * WEIGHTS) // PER_SAMPLE})
    yield Slip("forgets-the-block", "a block's activations come back while its backward pass runs", {
        "checkpointed": (CARD - STAYS["checkpointed"]) // KEPT,
    })  # fmt: skip
    yield Slip("everything-trains", "frozen weights have no gradient and no average", {
        "adapters": (CARD - 4 * (WEIGHTS + ADAPTERS)) // BESIDE_ADAPTERS,
    })  # fmt: skip
    yield Slip("frozen-weights-vanish", "the frozen weights are still on the card", {
        "adapters": (CARD - 4 * ADAPTERS) // BESIDE_ADAPTERS,
    })  # fmt: skip
    yield Slip("rounds-the-wrong-way", "part of a sample does not fit, and part of a micro-batch is one more", {
        "sgd": right["sgd"] + 1, "adapters": right["adapters"] + 1, "n": UPDATE // right["plain"],
    })  # fmt: skip
    yield Slip("not-rounded", "samples and micro-batches come whole", {
        "sgd": (CARD - STAYS["sgd"]) / PER_SAMPLE, "n": UPDATE / right["plain"],
        "adapters": lambda got: got is not None and 21.3 <= got <= 21.4,
    })  # fmt: skip


@exercise(
    "fits_on_paper",
    notebook="memory",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank.",
        "forgets-the-state": "What does AdamW keep for each weight from one update to the next?",
        "forgets-gradients": "What do the later forward passes of a window find in `.grad`?",
        "activations-alone": "What is on the card before the first sample comes?",
        "keeps-a-state": "What does SGD without momentum need from the update before?",
        "one-state-for-sgd": "Which of SGD's options needs a buffer, and is it on?",
        "forgets-the-block": "What is there besides, while a checkpointed block's backward pass runs?",
        "everything-trains": "For which weights does the loop with adapters need gradients?",
        "frozen-weights-vanish": "Does a forward pass need the frozen weights?",
        "rounds-the-wrong-way": "Does half a sample fit? And how many micro-batches do 61 samples take, ten at a time?",
        "not-rounded": "Can a micro-batch hold half a sample?",
        "wrong-value": "Write down what stays, subtract it from 1,000, and divide by what one sample adds.",
    },
)
def _fits_on_paper(answer: dict) -> str:
    judge_numbers(answer, fitting(), _slips())
    return "600 MB stay for AdamW, 300 for SGD, 190 with adapters; the rest is divided by what one sample adds."
