"""Pickles calls and results with cloudpickle, so that what a notebook defines can travel."""

import functools
import importlib
import io
import linecache
import marshal
import pickle
import sys
from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any

import cloudpickle


def pack_call(*call: Any) -> bytes:
    """Pickles the parts of a call, with the classes of `__main__` and the source lines of its code.

    Example:
        >>> (function, number), _ = unpack_call(pack_call(lambda n: 2 * n, 21))
        >>> function(number)
        42
    """
    pickler = _Pickler()
    # The last two are filled while the call is pickled.
    return pickler.pack((call, pickler.classes, pickler.sources), "the function or one of its arguments")


def unpack_call(packed: bytes) -> tuple[tuple, list[type]]:
    """The parts of a call, and the classes that came along; tracebacks find the source lines."""
    call, classes, sources = pickle.loads(packed)
    linecache.cache.update(sources)
    return call, classes


def pack_result(result: Any, classes: Iterable[type]) -> bytes:
    """Pickles a result; an instance of one of `classes` gets the sender's own class again."""
    return _Pickler(classes).pack(result, "the result")


class _Pickler(cloudpickle.Pickler):
    def __init__(self, known: Iterable[type] = ()):
        self._stream, self._known = io.BytesIO(), set(map(id, known))
        self.classes: list[type] = []
        self.sources: dict[str, tuple] = {}
        super().__init__(self._stream)

    def pack(self, thing: Any, name: str) -> bytes:
        try:
            self.dump(thing)
        except Exception as error:  # a class may say how it is pickled, and fail in its own way
            raise TypeError(f"{name} cannot be sent to another process: {error}") from error
        return self._stream.getvalue()

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, CodeType):
            file = thing.co_filename
            if lines := linecache.getlines(file):
                self.sources[file] = (0, None, lines, file)  # as in linecache.cache
            return marshal.loads, (marshal.dumps(thing),)  # cloudpickle 3.1.3 drops the file's name
        if isinstance(thing, functools._lru_cache_wrapper) and thing.__module__ == "__main__":
            return functools.cache, (thing.__wrapped__,)  # cloudpickle would send its name only
        if isinstance(thing, ModuleType) and sys.modules.get(thing.__name__) is thing:
            # Without this, cloudpickle fails at torch.distributed.config.
            return importlib.import_module, (thing.__name__,)
        reduced = super().reducer_override(thing)
        by_value = isinstance(reduced, tuple) and len(reduced) > 2
        if isinstance(thing, type) and by_value:
            if id(thing) in self._known:
                return reduced[:2]  # without its attributes, which the sender's class has
            self.classes.append(thing)
        return reduced
