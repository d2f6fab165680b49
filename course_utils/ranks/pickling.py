"""Pickles calls and results with cloudpickle, so that functions and classes of a notebook can travel to its ranks."""

import functools
import io
import linecache
import marshal
import pickle
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import cloudpickle


def pack_call(function: Callable, args: tuple) -> bytes:
    """Pickles a call, with what another process does not have: source lines for tracebacks, classes of `__main__`.

    Example:
        >>> function, args, _ = unpack_call(pack_call(lambda n: 2 * n, (21,)))
        >>> function(*args)
        42
    """
    pickler = _Pickler(io.BytesIO())
    # The last two are filled while the first two are pickled.
    return pickler.bytes_of((function, args, pickler.classes, pickler.sources), "the function or one of its arguments")


def unpack_call(pickled: bytes) -> tuple[Callable, tuple, list[type]]:
    """The function, its arguments, and the classes that came with them by value."""
    function, args, classes, sources = pickle.loads(pickled)
    for file, lines in sources.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    return function, args, classes


def pack_result(result: Any, classes: Iterable[type]) -> bytes:
    """Pickles a result; an instance of one of `classes` becomes an instance of the sender's own class again."""
    return _Pickler(io.BytesIO(), classes).bytes_of(result, "the result")


class _Pickler(cloudpickle.Pickler):
    def __init__(self, stream: io.BytesIO, known: Iterable[type] = ()):
        super().__init__(stream)
        self._stream, self._known = stream, set(map(id, known))
        self.classes: list[type] = []
        self.sources: dict[str, list[str]] = {}

    def bytes_of(self, thing: Any, name: str) -> bytes:
        try:
            self.dump(thing)
        except Exception as error:  # a class may say how it is pickled, and fail in its own way
            raise TypeError(f"{name} cannot be sent to another process: {error}") from error
        return self._stream.getvalue()

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, CodeType):
            if lines := linecache.getlines(thing.co_filename):
                self.sources[thing.co_filename] = lines
            return marshal.loads, (marshal.dumps(thing),)  # cloudpickle 3.1.3 would drop the name of its file
        if isinstance(thing, functools._lru_cache_wrapper) and thing.__module__ == "__main__":
            return _cached, (thing.__wrapped__, thing.cache_parameters())  # cloudpickle would send its name only
        reduced = super().reducer_override(thing)
        if isinstance(thing, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # by value, not by name
            if id(thing) in self._known:
                return reduced[:2]  # without its attributes: cloudpickle would replace those of the sender's class
            self.classes.append(thing)
        return reduced


def _cached(function: Callable, parameters: dict) -> Callable:
    return functools.lru_cache(**parameters)(function)
