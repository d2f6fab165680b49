"""What a judge says, and what the judges share."""

from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr

import torch
from torch import nn

from course_utils.memory import SavedBytes


@dataclass(frozen=True)
class Verdict:
    """What a judge found: `bug` names the class of the mistake, and is empty when the answer is right."""

    bug: str
    message: str

    @property
    def passed(self) -> bool:
        return not self.bug


class Mistake(Exception):
    """A mistake has been found; carries its verdict out of the cases of a judge."""

    def __init__(self, bug: str, message: str):
        self.verdict = Verdict(bug, message)


def number(value: object) -> float:
    if value is None or value is Ellipsis:
        raise Mistake("not-attempted", f"your function returned {value}; it should return a number.")
    try:
        return float(value)
    except Exception:
        raise Mistake("wrong-type", f"expected a number, got {repr(value)} ({type(value).__name__}).") from None


def close(got: Sequence[float], want: Sequence[float]) -> bool:
    return all(abs(g - w) <= 1e-9 * max(1.0, abs(w)) for g, w in zip(got, want, strict=True))


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]


def compare_weights(ours: nn.Module, theirs: nn.Module, case: str, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if not torch.allclose(p, q, rtol=rtol, atol=atol):
            gap = float((p - q).detach().abs().max())
            raise Mistake("wrong-value", f"{case}: parameter {name} ends up {gap:.2g} off.")


def compare_memory(saved: SavedBytes, one: SavedBytes, case: str, factor: float = 1.5) -> None:
    """`saved`: by the learner's loop; `one`: by a single micro-batch, the largest."""
    if saved.peak > factor * one.peak:
        raise Mistake(
            "held-graphs",
            f"{case}: the updates are right, but {saved.peak} bytes are kept for backward at once, where one "
            f"micro-batch needs {one.peak}: call backward on each before the next forward.",
        )
