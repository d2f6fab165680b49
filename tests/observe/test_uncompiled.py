"""Which code of a package Dynamo is told to leave alone: all that is defined there, and nothing that is imported."""

import sys
from types import ModuleType, SimpleNamespace

from gradaudit.observe import uncompiled
from gradaudit.observe.uncompiled import backward_is_compiled, leave_uncompiled

SOURCE = """
from contextlib import contextmanager
from functools import cache
from textwrap import dedent

number = 3

def plain():
    def inside():
        return [each for each in (1, 2)]
    return inside

@contextmanager
def block():
    yield

@cache
def cached():
    pass

class Thing:
    size = 2

    def method(self):
        pass

    @property
    def read(self):
        pass

    @classmethod
    def made(cls):
        pass
"""


def module(name, monkeypatch):
    made = ModuleType(name)
    exec(SOURCE, vars(made))
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_all_that_a_package_defines_is_left_alone(monkeypatch):
    left = []
    monkeypatch.setattr(uncompiled, "_skip", left.append)
    mine, other = (module(name, monkeypatch) for name in ("left_alone.inside", "compiled_as_ever"))
    leave_uncompiled("nowhere", "left_alone")
    names = {code.co_name for code in left}
    assert {"plain", "inside", "block", "cached", "method", "read", "made"} <= names
    assert "dedent" not in names
    assert any(code is mine.plain.__code__ for code in left)
    assert not any(code is other.plain.__code__ for code in left)  # equal, since it is the same text


def test_compiled_autograd_counts_while_it_is_on(monkeypatch):
    for on in (True, False):
        module = SimpleNamespace(compiled_autograd_enabled=on)
        monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", module)
        assert backward_is_compiled() is on
    monkeypatch.delitem(sys.modules, "torch._dynamo.compiled_autograd")
    assert backward_is_compiled() is False
