"""A specimen of the zoo, and the decorator that registers it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps

from course_utils.source import edited, function

Losses = Iterator[float]  # what a loop yields: the losses that its author would have logged

ZOO: dict[str, "Specimen"] = {}


@dataclass
class Specimen:
    """A buggy training loop, its fixed twin, and what is expected of both: see `specimen`.

    Attributes:
        buggy: Trains a small model as the source did, and returns the losses that its author would have logged.
    """

    name: str
    rule: str
    source: str
    url: str
    what: str
    level: str
    fix: dict[str, str]
    evidence: dict
    holds: dict[str, list[int]] | None
    leftover: int
    buggy: Callable[[], list[float]]

    @cached_property
    def fixed(self) -> Callable[[], list[float]]:
        """Does the same with the bug taken out and nothing else changed."""
        text = "\n" + inspect.getsource(self.buggy).partition("\ndef ")[2]
        for old, new in self.fix.items():
            text = edited(text, old, new)
        loop = self.buggy.__wrapped__
        made = function(f"\ndef {text[1:]}", loop.__globals__, f"{self.name}, fixed")
        return _listing_losses(made, f"{loop.__name__}_fixed", f"The loop {self.name}, fixed.")

    def listing(self) -> str:
        """The source of the buggy loop, without the names and the sentence that tell what is wrong."""
        source = inspect.getsource(self.buggy)
        return source[source.index("\ndef ") + 1 :].replace(f"{self.buggy.__name__}() -> Losses", "loop()", 1)


def _listing_losses(loop: Callable[[], Losses], name: str, what: str) -> Callable[[], list[float]]:
    @wraps(loop)
    def run() -> list[float]:
        return list(loop())

    run.__name__, run.__doc__ = name, what
    return run


def specimen(
    *,
    source: str,
    what: str,
    fix: dict[str, str],
    rule: str = "",
    level: str = "error",
    evidence: dict | None = None,
    holds: dict[str, list[int]] | None = None,
    leftover: int = 0,
) -> Callable[[Callable[[], Losses]], Specimen]:
    """Decorates a buggy loop and registers it as a specimen under its own name.

    Args:
        source: The report: "owner/repository#number" for an issue, with "!" instead of "#" for a pull request.
        what: What the loop does wrong, in a sentence.
        fix: How the loop is corrected: what stands once in its source, and what stands there instead (see `edited`).
        rule: The auditor's rule that must find the bug; by default the one that the file is named after.
        level: "error", "advice" or "undecided": the level at which the auditor finds the bug.
        evidence: What the finding's evidence must hold, among other things.
        holds: For each optimizer, how many micro-batches each of its updates uses.
        leftover: How many micro-batches no update uses.

    Raises:
        ValueError: If there is already a specimen of this name.
    """

    def register(loop: Callable[[], Losses]) -> Specimen:
        name = loop.__name__.replace("_", "-")
        if name in ZOO:
            raise ValueError(f"there is already a specimen {name!r}")
        named = rule or loop.__module__.rpartition(".")[2].replace("_", "-")
        url = "https://github.com/" + source.replace("!", "/pull/").replace("#", "/issues/")
        buggy = _listing_losses(loop, loop.__name__, what)
        expected = level, fix, evidence or {}, holds, leftover
        ZOO[name] = Specimen(name, named, source.replace("!", "#"), url, what, *expected, buggy)
        return ZOO[name]

    return register
