"""The table of programs and what the auditor says of each: `said` adds a row, audit/test_programs.py reads all."""

from collections.abc import Callable

import pytest

PROGRAMS = []


def said(*findings: str, name: str = "", window: int | None = None) -> Callable[[Callable], Callable]:
    """All findings in the decorated program, such as "loss-scale error"; none if it is left alone."""

    def add(program: Callable) -> Callable:
        row(name or program.__name__.replace("_", " "), program, *findings, window=window)
        return program

    return add


def row(name: str, program: Callable, *findings: str, window: int | None = None) -> None:
    PROGRAMS.append(pytest.param(program, sorted(findings), window, id=name))
