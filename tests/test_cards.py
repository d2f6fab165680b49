"""The recall cards: each number in an answer is worked out here, and each Yes or No agrees with its fact."""

import re
from decimal import Decimal
from fractions import Fraction

import pytest
import torch
from course import FACTS, NOTEBOOKS

BF16, FP16 = (torch.finfo(dtype) for dtype in (torch.bfloat16, torch.float16))


def longest_and_shortest_sum():
    same, opposite = torch.ones(100), torch.ones(100)
    opposite[::2] = -1
    return [opposite.sum().abs().item(), same.sum().item()]


def where_threes_stop():
    total = torch.zeros((), dtype=torch.bfloat16)
    while total + 3 != total:
        total = total + 3
    return [total.item(), total.item() * BF16.eps / 2]


def one_four_four():
    """The divisor, the remainder and the first i of the test that gives updates of 1, 4 and 4 micro-batches."""
    (found,) = ([4, first, start] for start in (0,) for first in range(4) if sizes(first, start) == [1, 4, 4])
    return found


def sizes(first, start):
    stops = [place for place, i in enumerate(range(start, 9 + start), start=1) if i % 4 == first]
    return [stop - before for before, stop in zip([0, *stops], stops, strict=False)]


def fractions(*shares):
    return [number for share in shares for number in (share.numerator, share.denominator)]


def effective(beta, n):
    return [(1 - beta**n) / (1 - beta), 1, beta, n, 1, beta]


def without_replacement(reading, samples):
    """The noise scale n / (n - 1 - B) times too large, solved for B."""
    return [reading, samples - 1, samples + reading, reading * (samples - 1) / (samples + reading)]


NUMBERS = {
    "A hundred gradients of length 1 are added. How long is the sum?": longest_and_shortest_sum,
    "A bowl has curvature 10. From which learning rate on does each loop diverge?": lambda: [2 / 10, 4 / 10],
    "Without zeroing on a bowl, why can nothing settle?": lambda: [1, 1],  # r² - (2 - a) r + 1
    "SGD, lr 0.1, weight decay 0.04, N = 4, no division. Which correct loop is it?": lambda: [0.1 * 4, 0.04 / 4],
    "Your updates hold 1, 4, 4, ... Which test is it?": one_four_four,
    "One update in 100 holds 15, not 8. Why?": lambda: [15 - 8],
    "A window has 6 and 2 samples. Which two shares?": lambda: fractions(
        Fraction(6, 6 + 2), Fraction(2, 6 + 2), Fraction(1, 2)
    ),
    "Micro-batches of 10, 20 and 30 tokens: what does a token of the first count?": lambda: fractions(
        Fraction(1, 3 * 10), Fraction(1, 10 + 20 + 30)
    ),
    "Where does a bf16 sum of 3s stop?": where_threes_stop,
    "Loss goes flat as lr decays. Why only in bf16?": lambda: [1, 4 / BF16.eps],  # half a step below a power of two
    "Which gradients pass float16 at a scale of 1024?": lambda: [2.0**-25 / 1024, FP16.max / 1024],
    "Most norms in the log are 1.5e-5. Why?": lambda: [1, torch.amp.GradScaler("cpu").get_scale()],
    "After 9 updates, scheduler.last_epoch is 30. Which mistake was made?": lambda: [30],
    "SGD's momentum goes from 0.9 to 0.9**4. How do you keep lr / (1 - beta)?": lambda: effective(0.9, 4),
    "A reading of 500, 600 shuffled samples?": lambda: without_replacement(500, 600),
    "One of 4 ranks forgets to zero, plain SGD?": lambda: [1, 4],
    "param_dtype is bfloat16, and you hold back. Which setting is missing?": lambda: [2.14],  # the last release so
    "Accelerate, 4 ranks: a scheduler of 1,000 steps ends after how many updates?": lambda: [1000 / 4],
    "Four backward passes per step under ZeRO-2, whose own N is 1. What is used?": lambda: [1498],  # as its fact
    "Which runs give you the shares, if all you have is a command line?": lambda: [0, 1, 4],
    "An update's shares add up to 0.5. What has happened?": lambda: [1 / 0.5],
    "N = 16 reaches your target loss in half the updates of N = 1. A gain?": lambda: [16, 16 / 2],
    "Which two costs does a window of N save, compared with N updates?": lambda: [1, 1],
    "Batch divided by 4, Adam: first guesses for lr and beta2 = 0.96?": lambda: [4**0.5, 0.96, 1, 4, 0.96 ** (1 / 4)],
    "Your batch is a tenth of the noise scale. What would a smaller batch gain?": lambda: [100 / (1 + 1 / 10)],
}
FACT = {  # each card that is answered by Yes or No, and the fact whose belief the question holds
    "A loop never zeroes, clips, and trains well. Is it fine?": "clipping-can-hide-it",
    "From the first update on, the loss of N = 8 lies below that of N = 1. Good news?": "logged-loss",
    "Does SyncBatchNorm fix a window?": "batchnorm-sees-micro-batches",
    "May each rank make a Muon update, and an all-reduce average them?": "steps-need-the-whole-gradient",
    "You doubled N, and the logged norm fell. Good news?": "batch-norm-is-inflated",
    "The auditor leaves a loop undecided. Has it passed?": "outside-has-limits",
}
CARDS = {question: answer for book in NOTEBOOKS.values() for question, answer in book.cards}


def numbers(answer: str) -> list[Decimal]:
    found = re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w)", answer)
    return [Decimal(number.replace(",", "")) for number in found]


def test_every_card_with_a_number_is_worked_out_and_every_yes_or_no_has_its_fact():
    assert {question for question, answer in CARDS.items() if numbers(answer)} == NUMBERS.keys()
    assert {question for question, answer in CARDS.items() if re.match(r"(Yes|No)\b", answer)} == FACT.keys()


@pytest.mark.parametrize("question", NUMBERS)
def test_the_numbers_of_a_card_are_right(question):
    for said, found in zip(numbers(CARDS[question]), NUMBERS[question](), strict=True):
        last_digit = 10.0 ** said.as_tuple().exponent
        assert found == pytest.approx(float(said), abs=last_digit / 2)


@pytest.mark.parametrize("question", FACT)
def test_yes_or_no_is_what_the_fact_says(question):
    fact = FACTS[FACT[question]]
    assert question in dict(NOTEBOOKS[fact.notebook].cards)
    assert CARDS[question].startswith("Yes" if fact.verdict == "true" else "No")
