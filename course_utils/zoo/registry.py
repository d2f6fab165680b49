"""A specimen of the zoo, which is the decorator that registers it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps

from course_utils.source import edited, function

Losses = Iterator[float]  # what a loop yields: the losses that its author would have logged

ZOO: dict[str, "Specimen"] = {}


@dataclass
class Specimen:
    """A buggy training loop and its fixed twin. `@Specimen(...)` decorates the buggy loop.

    Args:
        source: "owner/repository#number" for an issue, with "!" instead of "#" for a pull request.
        what: The loop's mistake, in a sentence.
        fix: The correction: texts that occur once in the source, and their replacements (see
            `edited`).
        rule: The auditor's rule that must find the bug; by default the name of the file.
        level: "error", "advice" or "undecided": the level at which the auditor finds the bug.
        holds: For each optimizer, how many micro-batches each of its updates uses.

    Attributes:
        name: That of the loop, with hyphens.
        buggy: Trains a small model as the source did, and returns the losses that its author would
            have logged.
    """

    source: str
    what: str
    fix: dict[str, str]
    rule: str = ""
    level: str = "error"
    holds: dict[str, list[int]] | None = None

    def __call__(self, loop: Callable[[], Losses]) -> "Specimen":
        self.name = loop.__name__.replace("_", "-")
        self.rule = self.rule or loop.__module__.rpartition(".")[2].replace("_", "-")
        self.url = "https://github.com/" + self.source.replace("!", "/pull/").replace("#", "/issues/")
        self.source = self.source.replace("!", "#")
        self.buggy = _listing_losses(loop, loop.__name__, self.what)
        ZOO[self.name] = self
        return self

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
        """The source of the buggy loop, without the name and the sentence that give the bug away."""
        source = inspect.getsource(self.buggy)
        return source[source.index("\ndef ") + 1 :].replace(f"{self.buggy.__name__}() -> Losses", "loop()", 1)


def _listing_losses(loop: Callable[[], Losses], name: str, what: str) -> Callable[[], list[float]]:
    @wraps(loop)
    def run() -> list[float]:
        return list(loop())

    run.__name__, run.__doc__ = name, what
    return run
