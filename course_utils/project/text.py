"""The words of the project, from the course's dictionary, and the loss of counting letters."""

import random
from collections import Counter
from itertools import pairwise
from math import log

from course_utils import data


def read_words() -> tuple[list[str], list[str]]:
    """Different words in a fixed random order: those to learn from, and 1,000 that are held out.

    Example:
        >>> to_learn, held_out = read_words()
        >>> len(to_learn), len(held_out), sorted(to_learn)[:2]
        (62875, 1000, ['a', 'aardvark'])
    """
    words = data.words()
    random.Random(0).shuffle(words)
    return words[1000:], words[:1000]


def bigram_loss(to_learn: list[str], held_out: list[str]) -> float:
    """The mean loss per letter, on held-out words, of counting which letter follows which.

    A tenth is added to every count, so that none of the 27 letters and ends is impossible.

    Example:
        >>> round(bigram_loss(["ab"] * 1000, ["ab"]), 3)
        0.003
    """
    pairs = Counter(pair for word in to_learn for pair in pairwise(f"^{word}$"))
    begins = Counter(before for before, _ in pairs.elements())
    asked = [pair for word in held_out for pair in pairwise(f"^{word}$")]
    return -sum(log((pairs[pair] + 0.1) / (begins[pair[0]] + 2.7)) for pair in asked) / len(asked)
