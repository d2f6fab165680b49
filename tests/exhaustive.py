"""Which cases run with every test, and which with `pytest -m exhaustive` only."""

from collections.abc import Iterable
from typing import Any

import pytest


def mark(cases: Iterable, but: Iterable = ()) -> list[Any]:
    """Cases for `pytest.mark.parametrize`: only those of `but` run outside the exhaustive run.

    Example:
        >>> [case.marks for case in mark(["DDP", "FSDP2"], but=["DDP"])]
        [(), (MarkDecorator(mark=Mark(name='exhaustive', args=(), kwargs={})),)]
    """
    cases, but = list(cases), list(but)
    if unknown := [case for case in but if case not in cases]:
        raise ValueError(f"no case is called {unknown[0]!r}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if case in but else pytest.mark.exhaustive
        )
        for case in cases
    ]
