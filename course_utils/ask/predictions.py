"""The answer to each prediction of the course, and why people predict something else: `data/predictions`, by notebook.

A table's name is the question. Neither answer nor sentence is in the notebooks, where they would answer the question.
"""

import tomllib
from functools import cache

from course_utils import data


def why(question: str) -> str:
    """A sentence that says why the wrong answer to a question of the course tempts; empty for any other question.

    Args:
        question: As `predict` asks it.

    Example:
        >>> why("4 ranks, plain SGD, only rank 0 zeroes: which momentum does that amount to?").partition("; ")[0]
        'One rank of four suggests a quarter'
    """
    return _tables().get(question, {}).get("why", "")


def known(question: str) -> str | None:
    """What the course says is measured; None for a question that isn't the course's.

    Example:
        >>> known("4 ranks, plain SGD, only rank 0 zeroes: which momentum does that amount to?")
        '0.75'
    """
    return _tables().get(question, {}).get("answer")


@cache
def _tables() -> dict[str, dict[str, str]]:
    found = {}
    paths = sorted((data.folder() / "predictions").glob("*.toml"))
    if not paths:
        raise FileNotFoundError(
            f"there are no predictions in {data.folder() / 'predictions'}: install the course again"
        )
    for path in paths:
        try:
            found |= tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): install the course again") from None
    return found
