"""Keeps Dynamo, the front end of `torch.compile`, out of the observer, so that scripts compile as they do without it.

Dynamo meets the observer in two ways. It traces a patched function, as a part of the user's: then it must find the
original there (`torch.compiler.is_dynamo_compiling()`). Or a patched function runs after a graph break, between two
compiled pieces of the user's: then Dynamo would compile the observer, too.
"""

import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, ModuleType

import torch


def backward_is_compiled() -> bool:
    """Whether compiled autograd is on, which would compile hooks on a graph with the graph.

    >>> backward_is_compiled()
    False
    """
    return getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False)


def leave_uncompiled(*packages: str) -> None:
    """What is loaded of these packages runs as it stands, also where compiled code calls it.

    Args:
        packages: Their names. Modules that are loaded later need another call.

    Example:
        >>> leave_uncompiled("gradaudit.observe")
    """
    _skip_packages(packages, len(sys.modules))


@cache  # for speed: a search goes through thousands of modules
def _skip_packages(packages: tuple[str, ...], _: int) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(packages) and isinstance(module, ModuleType):
            _skip_module(module)


@cache
def _skip_module(module: ModuleType) -> None:
    for thing in list(vars(module).values()):
        if getattr(thing, "__module__", None) == module.__name__:
            for function in vars(thing).values() if isinstance(thing, type) else [thing]:
                for code in _codes(getattr(_plain(function), "__code__", None)):
                    _skip(code)


def _plain(function: object) -> object:
    """The function inside a property, a class method, a context manager, a cache or a rule."""
    for inside in ("fget", "__func__", "__wrapped__"):
        function = getattr(function, inside, None) or function
    return function


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    """The code of a function, and of the functions inside it."""
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)


def _skip(code: CodeType) -> None:
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
