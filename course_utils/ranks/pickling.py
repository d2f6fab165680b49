"""Pickles calls and results with cloudpickle, so that what a notebook defines can travel."""

import importlib
import io
import marshal
import sys
from collections.abc import Collection
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

# The classes that this process has sent or received: both ends of a pipe know them.
TRAVELLED = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS


def pack(thing: Any, known: Collection[type] = ()) -> bytes:
    """Pickles a call or a result, with the classes of `__main__` that it needs.

    Args:
        thing: What to pickle. What can't be is the error of pickle or of the class.
        known: Classes that the other process has: it gets its own ones again.

    Example:
        >>> import pickle
        >>> pickle.loads(pack(lambda n: 2 * n))(21)
        42
    """
    pickler = _Pickler(stream := io.BytesIO())
    pickler.known = known
    pickler.dump(thing)
    return stream.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, CodeType):
            return marshal.loads, (marshal.dumps(thing),)  # cloudpickle 3.1.3 drops the file's name
        if isinstance(thing, ModuleType) and sys.modules.get(thing.__name__) is thing:
            # Without this, cloudpickle fails at torch.distributed.config.
            return importlib.import_module, (thing.__name__,)
        reduced = super().reducer_override(thing)
        if isinstance(thing, type) and thing in self.known and isinstance(reduced, tuple):
            return reduced[:2]  # without its attributes, which the sender's class has
        return reduced
