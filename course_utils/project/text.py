"""The words of the project, from the course's dictionary or from a text of the learner's, and what counting knows."""

import random
import re
from collections import Counter
from math import log
from pathlib import Path

from course_utils import data

LONGEST = 24  # letters; a longer word is left out
LEAST = 1000  # different words that a text must have


def read_words(text: str | Path | None = None) -> tuple[list[str], list[str]]:
    """Different words in a fixed random order: those to learn from, and those held out (a tenth, at most 1,000).

    Args:
        text: A file in UTF-8, whose words are read in lower case, in any alphabet; None means the course's dictionary.

    Raises:
        ValueError: If the text is not UTF-8, or has fewer than 1,000 different words.

    Example:
        >>> to_learn, held_out = read_words()
        >>> len(to_learn), len(held_out), sorted(to_learn)[:2]
        (62875, 1000, ['a', 'aardvark'])
    """
    try:
        found = re.findall(r"[^\W\d_]+", Path(text).read_text(encoding="utf-8").lower()) if text else data.words()
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} must be saved as UTF-8: {error}") from None
    words = sorted({word for word in found if len(word) <= LONGEST})
    if len(words) < LEAST:
        kinds = f"different words of at most {LONGEST} letters"
        raise ValueError(f"{text} has {len(words):,} {kinds}; the project needs {LEAST:,} or more")
    random.Random(0).shuffle(words)
    held_out = min(1000, len(words) // 10)
    return words[held_out:], words[:held_out]


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
