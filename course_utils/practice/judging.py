"""What a judge says, and what every judge needs to find out: whether two results agree, and which bug explains one.

A judge compares what an answer gives with what is correct (`compare`), every parameter of a trained model
(`compare_weights`) and what is held for the backward pass (`compare_memory`). What is wrong is named by finding a
known bug that gives the same result: known bugs are data, triples of a name, a hint and that result.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from reprlib import repr
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.memory import SavedBytes
from course_utils.practice.bench import Mistake, Verdict  # noqa: F401

RTOL, ATOL = 1e-6, 1e-9  # a quotient of two counts that are tensors is a float32, whatever it is multiplied with
F32_RTOL, F32_ATOL = 1e-4, 1e-5  # what training in float32, or in float64 with a rounded factor, is off by

Known = Iterable[tuple[str, str, Any]]  # a bug, a hint, and the result that the bug gives, or a function that finds it


def close(got: Any, want: Any, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """Whether two numbers, tensors, or sequences of them agree, and have one shape; NaN agrees with NaN only."""
    if isinstance(want, Tensor):
        same_shape = isinstance(got, Tensor) and got.shape == want.shape
        return same_shape and torch.allclose(got.to(want), want, rtol=rtol, atol=atol, equal_nan=True)
    if isinstance(want, Sequence):
        return len(got) == len(want) and all(close(g, w, rtol, atol) for g, w in zip(got, want, strict=True))
    if math.isfinite(got - want):
        return abs(got - want) <= atol + rtol * abs(want)
    return got == want or (math.isnan(got) and math.isnan(want))


def compare(got: Any, want: Any, case: str, known: Known = (), rtol: float = RTOL, atol: float = ATOL) -> None:
    """Raises a `Mistake` if two results differ: by the first known bug that gives the same, else `wrong-value`.

    Args:
        got: What the answer gave: a number, a tensor, or a sequence of them.
        want: What is correct.
        case: What the answer was given, and what it gave; the message begins with it.
        known: The bugs to look for, the most likely first.
        rtol: The relative tolerance.
        atol: The absolute tolerance.
    """
    if close(got, want, rtol, atol):
        return
    for bug, hint, wrong in known:
        if close(got, wrong() if callable(wrong) else wrong, rtol, atol):
            raise Mistake(bug, f"{case}: {hint}.")
    raise Mistake("wrong-value", f"{case}.")


def each_of(bug: str, hint: str, results: Iterable) -> Known:
    """For `compare`: one known bug that may give any of these results."""
    return [(bug, hint, result) for result in results]


def lost_digits(got: float | Sequence[float], want: float | Sequence[float], float32: float = 1e-6) -> Known:
    """For `compare`: a known bug that explains results which are near to the correct ones, and rounded or float32.

    Args:
        got: A number, or numbers, that the answer gave.
        want: What is correct, in float64.
        float32: By how much, relative to numbers above 1, computing in float32 may change a result.
    """
    pairs = [(got, want)] if isinstance(got, float) else list(zip(got, want, strict=False))
    if not isinstance(got, float) and len(got) != len(want):
        return
    for places in range(7):
        if all(round(g, places) == g and abs(g - w) < 10**-places for g, w in pairs):
            yield "low-precision", f"rounded to {places} decimal places" if places else "cut to whole numbers", got
    if all(abs(g - w) <= float32 * max(1.0, abs(w)) for g, w in pairs):
        yield "low-precision", "as if computed in float32, which holds 7 digits", got


@contextmanager
def scaler_refusals(case: str, known: tuple[str, str, str] | None = None) -> Iterator[None]:
    """Names what a GradScaler refuses in the block; `known` is a bug, its hint, and words of the scaler's error."""
    try:
        yield
    except (RuntimeError, AssertionError, ValueError) as error:
        if Path(extract_tb(error.__traceback__)[-1].filename).name != "grad_scaler.py":
            raise
        if known and known[2] in str(error):
            raise Mistake(known[0], f"{case}: {known[1]}.") from error
        raise Mistake("scaler-timing", f"{case}: the scaler refuses, {type(error).__name__}: {error}") from error


def read_all(result: object, at_most: int) -> object:
    """What an answer returned; of a generator, which runs only when it is read, at most so many entries."""
    try:
        entries = iter(result)
    except TypeError:
        return result
    return result if isinstance(result, (str, bytes)) else list(islice(entries, at_most))


def number(value: object) -> float:
    """The number that an answer returned, as a float."""
    if value is None or value is Ellipsis:
        raise Mistake("not-attempted", f"your function returned {value}; it should return a number.")
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except Exception:
        raise Mistake("wrong-type", f"expected a number, got {repr(value)} ({type(value).__name__}).") from None


def numbers(got: object, expected: int, what: str) -> list[float]:
    """The list of numbers that an answer returned; `what` says what it should return, `expected` how many of them."""
    if got is None or got is Ellipsis or (isinstance(got, list) and not got and expected):
        raise Mistake("not-attempted", f"your function returned {got}; it should return {what}.")
    if not isinstance(got, list):
        raise Mistake("wrong-type", f"expected {what}, got {repr(got)}.")
    if any(value is None for value in got) and any(value is not None for value in got):
        raise Mistake("wrong-type", f"expected {what}, got {repr(got)}.")
    return [number(value) for value in got]


def changed(now: Any, before: Any, what: str) -> str:
    """How the answer changed something that it was given, lists and tuples of tensors; empty if it did not.

    `before` is a copy, made before the answer ran; `what` is what the message calls it.
    """
    if isinstance(before, (list, tuple)):
        if not isinstance(now, (list, tuple)) or len(now) != len(before):
            left = len(now) if isinstance(now, (list, tuple)) else "no"
            return f"{what} that your function was given has {left} entries afterwards instead of {len(before)}"
        return next(filter(None, (changed(n, b, what) for n, b in zip(now, before, strict=True))), "")
    same = isinstance(now, Tensor) and now.shape == before.shape and torch.equal(now, before)
    return "" if same else f"your function changed {what} that it was given in place"


def rounded(values: Sequence[float]) -> list[float]:
    """Numbers as messages show them."""
    return [round(value, 3) for value in values]


def compare_weights(ours: nn.Module, theirs: nn.Module, case: str, rtol: float = RTOL, atol: float = 1e-7) -> None:
    """Compares every parameter of a model that the answer trained, `theirs`, with the correct one, `ours`."""
    for (name, want), got in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if not close(got, want, rtol, atol):
            gap = float((got - want).detach().abs().max())
            if got.dtype != want.dtype or close(got, want, F32_RTOL, F32_ATOL):
                kinds = f"{want.dtype} to {got.dtype}".replace("torch.", "")
                how = f"went from {kinds}" if got.dtype != want.dtype else "is as if computed in float32, or rounded"
                raise Mistake("low-precision", f"{case}: parameter {name} {how}: {gap:.2g} off.")
            raise Mistake("wrong-value", f"{case}: parameter {name} ends up {gap:.2g} off.")


def compare_memory(saved: SavedBytes, one: SavedBytes, case: str, factor: float = 1.5) -> None:
    """Compares what a loop held for the backward pass with what its largest micro-batch alone holds, `one`."""
    if saved.peak > factor * one.peak:
        raise Mistake(
            "held-graphs",
            f"{case}: the updates are right, but {saved.peak} bytes are kept for the backward pass at once, where one "
            f"micro-batch needs {one.peak}: call backward() on each before the next forward pass.",
        )
