"""A specimen of the zoo, and the decorator that registers it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps

Losses = Iterator[float]  # what a loop yields: the losses that its author would have logged

ZOO: dict[str, "Specimen"] = {}


@dataclass
class Specimen:
    """A buggy training loop, its fixed twin, and what is expected of both.

    Attributes:
        name: The name of the buggy loop, with hyphens.
        url: The address of the report that `source` names.
        buggy: Trains a small model as the source did, and returns the losses that its author would have logged.
        fixed: Does the same with the bug taken out and nothing else changed.

    The others are the arguments of `specimen`.
    """

    name: str
    rule: str
    source: str
    url: str
    what: str
    level: str
    evidence: dict
    holds: dict[str, list[int]] | None
    leftover: int
    buggy: Callable[[], list[float]]
    fixed: Callable[[], list[float]] | None = None

    def fix(self, loop: Callable[[], Losses]) -> Callable[[], list[float]]:
        """Registers the fixed twin; used as a decorator."""
        self.fixed = _listing_losses(loop, f"The loop {self.name}, fixed.")
        return self.fixed

    def listing(self) -> str:
        """The source of the buggy loop, without the names and the sentence that tell what is wrong."""
        source = inspect.getsource(self.buggy)
        return source[source.index("\ndef ") + 1 :].replace(f"{self.buggy.__name__}() -> Losses", "loop()", 1)


def _listing_losses(loop: Callable[[], Losses], what: str) -> Callable[[], list[float]]:
    @wraps(loop)
    def run() -> list[float]:
        return list(loop())

    run.__doc__ = what
    return run


def specimen(
    *,
    rule: str,
    source: str,
    what: str,
    level: str = "error",
    evidence: dict | None = None,
    holds: dict[str, list[int]] | None = None,
    leftover: int = 0,
) -> Callable[[Callable[[], Losses]], Specimen]:
    """Registers a buggy loop as a specimen under its own name.

    Args:
        rule: The auditor's rule that must find the bug; the file has its name.
        source: The report: "owner/repository#number" for an issue, with "!" instead of "#" for a pull request.
        what: What the loop does wrong, in a sentence.
        level: "error", "advice" or "undecided": the level at which the auditor finds the bug.
        evidence: What the finding's evidence must hold, among other things.
        holds: For each optimizer, how many micro-batches each of its updates uses.
        leftover: How many micro-batches no update uses.

    Returns:
        The specimen, whose `fix` decorates the fixed twin.

    Raises:
        ValueError: If there is already a specimen of this name.
    """

    def register(loop: Callable[[], Losses]) -> Specimen:
        name = loop.__name__.replace("_", "-")
        if name in ZOO:
            raise ValueError(f"there is already a specimen {name!r}")
        url = "https://github.com/" + source.replace("!", "/pull/").replace("#", "/issues/")
        buggy = _listing_losses(loop, what)
        ZOO[name] = Specimen(
            name, rule, source.replace("!", "#"), url, what, level, evidence or {}, holds, leftover, buggy
        )
        return ZOO[name]

    return register
