"""Patched functions, which can be put back in any order."""

from collections.abc import Callable
from functools import reduce, wraps

from torch.compiler import is_dynamo_compiling

from gradaudit.observe.uncompiled import leave_uncompiled


class _Patch:
    """A function that stands in for an attribute and calls what its wrappers make of the original.

    Wrappers may be removed in any order. The attribute is restored with the last of them, unless the script has put
    something of its own there; code that has kept the function calls the original from then on.
    """

    def __init__(self, owner: object, name: str) -> None:
        self.owner, self.name, self.original = owner, name, vars(owner)[name]
        self.wrappers: list[Callable] = []
        self.call = self.original

        @wraps(self.original)
        def patched(*args, **kwargs):
            if is_dynamo_compiling():  # Dynamo traces what would be there without the observer
                return self.original(*args, **kwargs)
            return self.call(*args, **kwargs)

        leave_uncompiled(patched)
        patched.patch, self.patched = self, patched
        # torch.jit.script compiles the original: that of a function that is its own wrapper while tracing
        vars(patched).update({"__script_if_tracing_wrapper": True, "__original_fn": self.original})
        setattr(owner, name, patched)

    def set(self, wrappers: list[Callable]) -> None:
        self.wrappers = wrappers
        self.call = reduce(lambda call, wrapper: wrapper(call), wrappers, self.original)
        if not wrappers and vars(self.owner).get(self.name) is self.patched:
            setattr(self.owner, self.name, self.original)


def patch(owner: object, name: str, wrapper: Callable) -> Callable[[], None]:
    """Lets `wrapper(original)` be called in place of `owner.name`.

    Args:
        owner: A class or a module.
        name: Of its attribute.
        wrapper: Makes a function of the original one.

    Returns:
        What undoes it.
    """
    present = vars(owner)[name]
    patch = getattr(present, "patch", None)
    if not isinstance(patch, _Patch) or patch.patched is not present:  # functools.wraps copies attributes
        patch = _Patch(owner, name)
    patch.set([*patch.wrappers, wrapper])
    return lambda: patch.set([other for other in patch.wrappers if other is not wrapper])
