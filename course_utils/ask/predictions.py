"""The answer to each prediction of the course, and why a wrong one tempts: `data/predictions`.

A table's name is the question. Neither answer nor sentence is in the notebooks, where they would
answer the question.
"""

import tomllib
from functools import cache

from course_utils import data


@cache
def recorded() -> dict[str, dict[str, str]]:
    """By the question of a prediction its `answer`, and `why` a wrong one tempts: a sentence.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If a file is damaged.

    Example:
        >>> recorded()["Only rank 1's gradient overflows. Which ranks skip that update?"]["answer"]
        'both'
    """
    folder, found = data.folder() / "predictions", {}
    for path in sorted(folder.glob("*.toml")):
        try:
            found |= tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): install the course again") from None
    if not found:
        raise FileNotFoundError(f"there are no predictions in {folder}: install the course again")
    return found
