"""A specimen of the zoo, which is the decorator that registers it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from course_utils.source import edited, function
from course_utils.zoo.props import classifier

Losses = Iterator[float]  # what a loop yields: the losses that its author would have logged

ZOO: dict[str, "Specimen"] = {}


@dataclass(eq=False)
class Specimen:
    """A buggy training loop and its fixed twin. `@Specimen(...)` decorates the buggy loop.

    Args:
        rule: The auditor's rule that must find the bug; "" if it has none.
        source: "owner/repository#number" of an issue or a pull request on GitHub.
        fix: The correction: texts that occur once in the source, and their replacements (see
            `edited`).
        level: "error", "advice" or "undecided": the level at which the auditor finds the bug.
        listed: Whether it is in `ZOO`.
        props: Makes what the loop takes, if it takes anything: its model and optimizer.

    Attributes:
        loop: The buggy loop, as a generator of losses.
        name: That of the loop, with hyphens.
        takes: The names of the loop's arguments.
        what: The loop's mistake, in a sentence: its docstring.
        url: The address of the source, which GitHub redirects if it is a pull request.
    """

    rule: str
    source: str
    fix: dict[str, str]
    level: str = "error"
    listed: bool = True
    props: Callable[[], tuple] = classifier

    def __call__(self, loop: Callable[..., Losses]) -> "Specimen":
        self.loop, self.name = loop, loop.__name__.replace("_", "-")
        self.takes = ", ".join(inspect.signature(loop).parameters)
        self.what = " ".join(loop.__doc__.split())
        self.url = "https://github.com/" + self.source.replace("#", "/issues/")
        if self.listed:
            ZOO[self.name] = self
        return self

    def buggy(self) -> list[float]:
        """Trains a small model as the source did; the losses that its author would have logged."""
        return self._losses(self.loop)

    def fixed(self) -> list[float]:
        """Does the same with the bug taken out and nothing else changed."""
        return self._losses(function(self.listing(fixed=True), self.loop.__globals__, f"{self.name}, fixed"))

    def _losses(self, loop: Callable[..., Losses]) -> list[float]:
        return list(loop(*self.props()) if self.takes else loop())

    def listing(self, fixed: bool = False) -> str:
        """The source of a loop, without the name and the sentence that give the bug away."""
        body = inspect.getsource(self.loop).split('"""')[2]
        for old, new in self.fix.items() if fixed else ():
            body = edited(body, old, new)
        return f"def loop({self.takes}):{body}"
