"""Why people predict what they predict: a sentence for each prediction, a TOML file per notebook in `data/predictions`.

A table's name is the question; `answer` is what the notebook measured when the sentence was written. Neither is in the
notebooks, where they would answer the questions.
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
    return _sentences().get(question, "")


@cache
def _sentences() -> dict[str, str]:
    found = {}
    for path in sorted((data.folder() / "predictions").glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        found |= {question: table["why"] for question, table in tables.items()}
    return found
