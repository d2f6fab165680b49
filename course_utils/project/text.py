"""The words of the project, from the course's dictionary, and what counting letters knows of them."""

import random
from collections import Counter
from math import log

from course_utils import data


def read_words() -> tuple[list[str], list[str]]:
    """Different words in a fixed random order: those to learn from, and 1,000 that are held out.

    Example:
        >>> to_learn, held_out = read_words()
        >>> len(to_learn), len(held_out), sorted(to_learn)[:2]
        (62875, 1000, ['a', 'aardvark'])
    """
    words = sorted(data.words())
    random.Random(0).shuffle(words)
    return words[1000:], words[:1000]


def bigram_loss(to_learn: list[str], held_out: list[str]) -> float:
    """The mean loss per letter, on held-out words, of counting how often each letter follows another one.

    A tenth is added to every count, so that nothing is impossible. A word's end counts as a letter.

    Example:
        >>> round(bigram_loss(["ab"] * 100, ["ab"]), 3)
        0.002
    """
    symbols = len(set("".join([*to_learn, *held_out]))) + 1
    pairs = Counter(pair for word in to_learn for pair in _pairs(word))
    begins = Counter()
    for (before, _), many in pairs.items():
        begins[before] += many
    chances = [(pairs[pair] + 0.1) / (begins[pair[0]] + 0.1 * symbols) for word in held_out for pair in _pairs(word)]
    return -sum(map(log, chances)) / len(chances)


def _pairs(word: str) -> list[tuple[str, str]]:
    return list(zip(f"^{word}", f"{word}$", strict=True))
