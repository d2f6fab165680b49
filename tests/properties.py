"""Properties: what holds of everything that a strategy can draw, with the same examples always."""

import os
from collections.abc import Callable
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

PLAIN = int(os.environ.get("EXAMPLES", 0))  # of each property, in place of its own number


def check(holds: Callable[[Any], None], drawn: SearchStrategy, name: str, examples: int = 3) -> None:
    """Calls `holds` with what is drawn; `name` chooses the examples, EXAMPLES how many."""
    run = given(drawn)(holds)
    run = settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=PLAIN or examples,
        suppress_health_check=list(HealthCheck),
    )(run)
    seed(crc32(name.encode()))(run)()
