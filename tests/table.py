"""The table of programs and what the auditor says of each: `said` adds a row, `test_verdicts` reads them all."""

from collections.abc import Callable

import pytest

PROGRAMS = []


def said(rule: str, *levels: str, window: int | None = None) -> Callable[[Callable], Callable]:
    """The findings of this rule in the decorated program, by their levels; none if it is left alone.

    Without a name, those of all rules. `window`: what is declared.
    """

    def add(program: Callable) -> Callable:
        row(program.__name__.replace("_", " "), program, rule, *levels, window=window)
        return program

    return add


def row(name: str, program: Callable, rule: str, *levels: str, window: int | None = None) -> None:
    PROGRAMS.append(pytest.param(program, rule, levels, window, id=name))
