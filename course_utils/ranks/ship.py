"""Sends a function that a notebook has defined to another process: its source, and what it needs, in one pickle.

A plain pickle names a function by its module and fails for what a notebook defines, since no other process has that
notebook's `__main__`. Here a function or class of `__main__` travels as source, with the names of `__main__` that it
uses; everything else travels as in any pickle.
"""

import ast
import dis
import importlib
import inspect
import io
import linecache
import pickle
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def dumps(thing: Any) -> bytes:
    """Pickles anything that can be pickled, and functions, classes and modules that a notebook has defined or imported.

    **Raises:** `TypeError` for a lambda, for a function defined inside another one, and for what no pickle can hold.

    >>> loads(dumps(len))("four")
    4
    """
    stream = io.BytesIO()
    try:
        _Pickler(stream).dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"this cannot be sent to another process: {error}") from error
    return stream.getvalue()


loads = pickle.loads


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, ModuleType):
            return importlib.import_module, (thing.__name__,)
        if isinstance(thing, FunctionType | type) and thing.__module__ == "__main__":
            return _by_source(thing)
        return NotImplemented


def _by_source(thing: Any) -> tuple:
    """How to rebuild a function or class: define it with what its definition needs, then add what its body needs.

    The second part comes as the state of the object, since a pickle has noted the object by then: functions may call
    themselves and each other.
    """
    name = thing.__name__
    if thing.__qualname__ != name or not name.isidentifier():
        raise TypeError(f"{thing.__qualname__} must be defined by def or class, outside functions")
    source, known = _source(thing)
    code = compile(source, name, "exec")
    at_definition = {used: known[used] for used in _names(code) if used in known and used != name}
    inside = {used: known[used] for part in _parts(code) for used in _names(part) if used in known and used != name}
    return _define, (name, source, at_definition), inside, None, None, _bind


def _source(thing: Any) -> tuple[str, dict]:
    """The text of a definition and the names around it. For a class, `inspect` would ask for a file of `__main__`."""
    functions = (
        [thing] if isinstance(thing, FunctionType) else [f for f in vars(thing).values() if inspect.isfunction(f)]
    )
    for function in map(inspect.unwrap, functions):
        text = "".join(linecache.getlines(function.__code__.co_filename))
        for node in reversed(ast.parse(text).body):  # the last definition of a name is the one that holds
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == thing.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n", function.__globals__
    raise TypeError(f"the source of {thing.__name__} is not known")


def _names(code: CodeType) -> list[str]:
    """The global names that this code reads, those of the functions within it left out."""
    return [step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")]


def _parts(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _parts(part)


def _define(name: str, source: str, needs: dict) -> Any:
    namespace = vars(sys.modules["__main__"])
    namespace.update(needs)
    file = f"<{name}, sent by the notebook>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # tracebacks show its lines
    exec(compile(source, file, "exec"), namespace)
    return namespace[name]


def _bind(_: Any, needs: dict) -> None:
    vars(sys.modules["__main__"]).update(needs)
