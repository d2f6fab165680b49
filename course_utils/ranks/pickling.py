"""Pickles calls and results with cloudpickle, so that functions and classes of a notebook can travel to its ranks."""

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
    """Pickles the parts of a call, and what another process does not have: source lines, classes of `__main__`.

    Example:
        >>> (function, number), _ = unpack_call(pack_call(lambda n: 2 * n, 21))
        >>> function(number)
        42
    """
    pickler = _Pickler()
    # The last two are filled while the call is pickled.
    return pickler.pack((call, pickler.classes, pickler.sources), "the function or one of its arguments")


def unpack_call(packed: bytes) -> tuple[tuple, list[type]]:
    """The parts of a call, and the classes that came with them by value. Tracebacks find the source lines."""
    call, classes, sources = pickle.loads(packed)
    linecache.cache.update(sources)
    return call, classes


def pack_result(result: Any, classes: Iterable[type]) -> bytes:
    """Pickles a result; an instance of one of `classes` becomes an instance of the sender's own class again."""
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
            if lines := linecache.getlines(thing.co_filename):
                self.sources[thing.co_filename] = (0, None, lines, thing.co_filename)  # as in linecache.cache
            return marshal.loads, (marshal.dumps(thing),)  # cloudpickle 3.1.3 would drop the name of its file
        if isinstance(thing, ModuleType) and sys.modules.get(thing.__name__) is thing:
            return importlib.import_module, (thing.__name__,)  # cloudpickle fails at torch.distributed.config
        reduced = super().reducer_override(thing)
        if isinstance(thing, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # by value, not by name
            if id(thing) in self._known:
                return reduced[:2]  # without its attributes: cloudpickle would replace those of the sender's class
            self.classes.append(thing)
        return reduced
