"""What a judge says, and what the judges share."""

from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr


@dataclass(frozen=True)
class Verdict:
    """What a judge found: `bug` names the class of the mistake, and is empty when the answer is right."""

    bug: str
    message: str

    @property
    def passed(self) -> bool:
        return not self.bug


class Found(Exception):
    """A mistake has been found; carries its verdict out of the cases of a judge."""

    def __init__(self, bug: str, message: str):
        self.verdict = Verdict(bug, message)


def number(value: object) -> float:
    if value is None or value is Ellipsis:
        raise Found("not-attempted", f"your function returned {value}; it should return a number.")
    try:
        return float(value)
    except Exception:
        raise Found("wrong-type", f"expected a number, got {repr(value)} ({type(value).__name__}).") from None


def close(got: Sequence[float], want: Sequence[float]) -> bool:
    return all(abs(g - w) <= 1e-9 * max(1.0, abs(w)) for g, w in zip(got, want, strict=True))


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]
