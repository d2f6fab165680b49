"""The recall cards, by notebook and number: their numbers are worked out here, and Yes or No agrees with the fact."""

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
    return [total.item(), total.item() * (1 + BF16.eps), 3]


def one_four_four():
    """The divisor, the remainder and the first i of the test that gives updates of 1, 4 and 4 micro-batches."""
    (found,) = ([4, first, start] for start in (0,) for first in range(4) if sizes(first, start) == [1, 4, 4])
    return found


def sizes(first, start):
    stops = [place for place, i in enumerate(range(start, 9 + start), start=1) if i % 4 == first]
    return [stop - before for before, stop in zip([0, *stops], stops, strict=False)]


def fractions(*shares):
    return [number for share in shares for number in (share.numerator, share.denominator)]


NUMBERS = {
    "where_forgetting_leads, card 1": longest_and_shortest_sum,
    "where_forgetting_leads, card 2": lambda: [2 / 10, 4 / 10],
    "where_forgetting_leads, card 3": lambda: [1, 1],  # r² - (2 - a) r + 1
    "05_windows, card 1": one_four_four,
    "05_windows, card 3": lambda: fractions(Fraction(6, 6 + 2), Fraction(2, 6 + 2), Fraction(1, 2)),
    "06_tokens, card 1": lambda: fractions(Fraction(1, 3 * 10), Fraction(1, 10 + 20 + 30)),
    "low_precision, card 1": where_threes_stop,
    "low_precision, card 2": lambda: [1, 4 / BF16.eps],  # half a step below a power of two
    "09_amp, card 2": lambda: [torch.finfo(torch.float16).max],
    "shards_and_pipelines, card 2": lambda: [2.14],  # the last release so
    "frameworks, card 3": lambda: [1000 / 4],
    "should_you_accumulate, card 1": lambda: [16, 16 / 2],
    "should_you_accumulate, card 3": lambda: [4**0.5, 0.96, 1, 4, 0.96 ** (1 / 4)],
}
FACT = {  # a card that is answered by Yes or No, and the fact that it is about
    "02_zeroing, card 1": "placements-agree",
    "03_forgetting, card 2": "clipping-can-hide-it",
    "07_exactness, card 3": "batchnorm-sees-micro-batches",
    "08_training_loop, card 3": "logged-loss",
    "several_optimizers, card 2": "steps-need-the-whole-gradient",
    "noise_scale, card 1": "batch-norm-is-inflated",
}
CARDS = {f"{name}, card {k}": answer for name, book in NOTEBOOKS.items() for k, (_, answer) in enumerate(book.cards, 1)}


def numbers(answer: str) -> list[Decimal]:
    found = re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w)", answer)
    return [Decimal(number.replace(",", "")) for number in found]


@pytest.mark.parametrize("card", NUMBERS)
def test_the_numbers_of_a_card_are_right(card):
    for said, found in zip(numbers(CARDS[card]), NUMBERS[card](), strict=True):
        last_digit = 10.0 ** said.as_tuple().exponent
        assert found == pytest.approx(float(said), abs=last_digit / 2)


@pytest.mark.parametrize("card", FACT)
def test_yes_or_no_is_what_the_fact_says(card):
    assert CARDS[card].startswith("Yes" if FACTS[FACT[card]].verdict == "true" else "No")
