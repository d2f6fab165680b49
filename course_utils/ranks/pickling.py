"""Pickles calls and results with cloudpickle, so that functions and classes of a notebook can travel to its ranks."""

import io
import linecache
import marshal
from types import CodeType
from typing import Any

import cloudpickle


def pack(thing: Any, name: str) -> bytes:
    """Pickles something, functions with their source lines, which tracebacks in another process show.

    Example:
        >>> function, number = cloudpickle.loads(pack((lambda n: 2 * n, 21), "a call"))
        >>> function(number)
        42
    """
    stream = io.BytesIO()
    try:
        _Pickler(stream).dump(thing)
    except Exception as error:  # a class may say how it is pickled, and fail in its own way
        raise TypeError(f"{name} cannot be sent to another process: {error}") from error
    return stream.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, CodeType):  # cloudpickle 3.1.3 would drop the name of its file
            return _code, (marshal.dumps(thing), linecache.getlines(thing.co_filename))
        return super().reducer_override(thing)


def _code(dumped: bytes, lines: list[str]) -> CodeType:
    code = marshal.loads(dumped)
    linecache.cache.setdefault(code.co_filename, (sum(map(len, lines)), None, lines, code.co_filename))
    return code
