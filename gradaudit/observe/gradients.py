"""What is seen of the gradients of some parameters: which were written or replaced since the last look.

PyTorch has no hook for zeroing, and none is needed: each tensor has a version, which rises with every write, so
comparing which tensor `.grad` is, and its version, with the last time shows whether anything was zeroed, clipped or
assigned in between. This computes nothing. Values are read only where gradients may have been zeroed through `.data`,
which raises no version: always after a step, and inside the first windows, and all of them if that happens there.
"""

import gc
from collections.abc import Iterable
from itertools import compress
from operator import attrgetter, is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradaudit.observe.sharded import Shard, keepers, shards

_READ = 20  # windows, the first ones, in which values are read
_grad, _version = attrgetter("grad"), attrgetter("_version")


class Gradients:
    """The gradients of an optimizer's parameters.

    Attributes:
        parameters: Those of the optimizer, or others.
        ids: Of the parameters.
        touched: The places of the gradients that the last comparison found written or replaced.
        put: It found other tensors.
        waits: It found gradients that wait for the other ranks.
        ever: For each parameter, has it ever had a gradient?
        last: For each, the last window in which a backward call brought it one; 0 if none has.
        empty: Are there no gradients, or nothing but zeros?
        came_as_zeros: The backward calls themselves brought nothing but zeros.
        from_before: Were there any when a parameter was added, and has nothing zeroed them? Nobody knows how many
            micro-batches they hold.
    """

    lists = "parameters", "seen", "versions", "ever", "last"

    def __init__(self) -> None:
        self.parameters: list[Tensor] = []
        self.ids: set[int] = set()
        # Each .grad, which is not kept alive, or its shards. (An id alone can be that of a later tensor.)
        self.seen: list[ref[Tensor] | tuple[ref[Tensor], ...] | None] = []
        self.versions: list[int | tuple[int, ...]] = []
        self.ever: list[bool] = []
        self.last: list[int] = []
        self.sharded = False  # is any parameter a DTensor?
        self.shards: dict[int, Shard] = {}  # of the parameters that FSDP keeps, by their ids
        self.touched: list[int] = []
        self.put = self.waits = self.came_as_zeros = False
        self.empty, self.from_before = True, False
        self.unversioned = False  # was anything written that raised no version?
        self.filled = 0  # windows that a backward call has begun

    def update(self, optimizer: Optimizer) -> bool:
        """Adds the parameters that the optimizer holds by now, and lets go of those that it doesn't hold any more.

        Returns:
            Whether it has let go of all that had gradients, as where points are added to a scene.
        """
        known, listed = len(self.parameters), [p for group in optimizer.param_groups for p in group["params"]]
        ids = set(map(id, listed))
        if ids == self.ids:  # as in most calls
            return False
        for p in listed:
            if id(p) not in self.ids:
                self.add(p)
        gone = self.ids - ids
        self.discard(gone)
        if self.sharded and len(self.parameters) > known:
            found = shards(living(*keepers()))
            self.shards = {key: found[key] for key in self.ids & found.keys()}
            self.compare()
        forgotten = bool(gone) and self.without_gradients
        self.empty |= forgotten
        return forgotten

    def add(self, p: Tensor) -> None:
        self.ids.add(id(p))
        self.parameters.append(p)
        self.sharded |= local(p) is not p
        grad = p.grad
        self.seen.append(None if grad is None else ref(grad))
        self.versions.append(0 if grad is None else version(grad))
        self.ever.append(False)
        self.last.append(0)
        self.empty &= grad is None
        self.from_before |= not is_zero(grad)

    def discard(self, ids: set[int]) -> None:
        self.keep([id(p) not in ids for p in self.parameters])
        self.ids -= ids

    def keep(self, stays: list[bool]) -> None:
        for name in self.lists:
            setattr(self, name, list(compress(getattr(self, name), stays)))

    def let_go(self) -> None:
        """Keeps no tensor alive any more."""
        self.parameters, self.seen, self.shards = [], [], {}

    @property
    def without_gradients(self) -> bool:
        return not any(self.seen)

    def compare(self) -> bool:
        """Notes which gradients have been written or replaced since the last comparison. Were there any?"""
        if self.sharded:
            seen, versions = self._look_at_shards()
        else:
            seen, versions = [], []  # a loop makes fewer calls than comprehensions, and takes half the time of map()
            for grad in map(_grad, self.parameters):
                seen.append(None if grad is None else ref(grad))
                versions.append(0 if grad is None else grad._version)
        self.touched, self.put = [], False
        if versions == self.versions and all(map(is_, seen, self.seen)):
            return False
        for place, now in enumerate(seen):
            if now is not self.seen[place]:
                self.put |= now is not None
            elif versions[place] == self.versions[place]:
                continue
            self.touched.append(place)
            self.ever[place] |= now is not None
        self.seen, self.versions = seen, versions
        return True

    def _look_at_shards(self) -> tuple[list, list]:
        self.waits = False
        found = list(map(self._sharded, self.parameters))
        return (
            [_same_or_new(was, tuple(map(ref, gradients))) for was, gradients in zip(self.seen, found, strict=True)],
            [tuple(map(version, gradients)) or 0 for gradients in found],
        )

    def _sharded(self, p: Tensor) -> list[Tensor]:
        """The gradient of a parameter, and those that FSDP will add to it."""
        if id(p) not in self.shards:
            return [] if p.grad is None else [p.grad]
        gradients, waits = self.shards[id(p)].read(p)
        self.waits |= waits
        return gradients

    def is_idle(self, index: int, windows: int = 1) -> bool:
        """Whether a parameter got no gradient in more than so many windows up to now."""
        return self.filled - self.last[index] > windows

    @property
    def is_read(self) -> bool:
        """Whether values are read in this window: zeros may be written without a version."""
        return self.filled <= _READ or self.unversioned

    def begin_again(self) -> None:
        """All of them are None or zero."""
        self.empty, self.came_as_zeros, self.from_before = True, False, False

    def came(self, first: bool) -> None:
        """A backward call has brought gradients. `first`: none were there."""
        for index in self.touched:
            self.last[index] = self.filled
        if self.is_read:
            grad = self.parameters[self.touched[0]].grad
            on_cpu = grad is not None and grad.is_cpu  # reading values on any other device would wait for it
            zeros = on_cpu and not any_nonzero(grad) and self.all_zero()
            self.came_as_zeros = zeros and (first or self.came_as_zeros)
        self.empty = False

    def all_zero(self) -> bool:
        return not any(any_nonzero(grad) for p in self.parameters for grad in self._sharded(p))

    def weight_versions(self) -> int:
        """A number that rises with every write to a parameter."""
        return sum(map(version if self.sharded else _version, self.parameters))


def _same_or_new(was: Any, now: tuple[ref, ...]) -> tuple[ref, ...] | None:
    """What was seen last time, if these are the same tensors: two references aren't compared by `==`, which would
    compare the tensors' values."""
    same = isinstance(was, tuple) and len(was) == len(now) and all(map(is_, was, now))
    return was if same else now or None


def local(tensor: Tensor | None) -> Tensor | None:
    """This rank's shard of a DTensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def version(tensor: Tensor) -> int:
    """A number that rises with every write. FSDP writes to a DTensor's shard, and everyone else to the DTensor."""
    shard = local(tensor)
    return tensor._version if shard is tensor else tensor._version + shard._version


def tensors_in(argument: Any) -> list[Tensor]:
    """A tensor, or the tensors in a collection; none in what is no collection, which is an error of the script's."""
    if isinstance(argument, Tensor):
        return [argument]
    return [each for each in argument if isinstance(each, Tensor)] if isinstance(argument, Iterable) else []


def is_zero(grad: Tensor | None) -> bool:
    return grad is None or not any_nonzero(grad)


def any_nonzero(grad: Tensor) -> bool:
    if type(grad) is not Tensor:
        grad = local(grad)
    if grad.is_meta:
        return True  # there are no numbers
    if grad.is_sparse:
        grad = grad._values()
    if type(grad) is Tensor and grad.is_cpu:  # faster than any(): it makes no tensor, and stops at the first difference
        return not torch.equal(grad, torch.zeros((), dtype=grad.dtype, device="cpu").expand(grad.shape))
    return bool(grad.any())


def subclasses(cls: type) -> Iterable[type]:
    return dict.fromkeys([cls, *(found for child in cls.__subclasses__() for found in subclasses(child))])


def living(*classes: type) -> list:
    """All living objects of these classes, which are written in Python: such an object refers to its class.

    This goes once through the heap, without a look at each object. It takes longer with every class.
    """
    kinds = {id(kind): kind for cls in classes for kind in subclasses(cls)}
    return [thing for thing in gc.get_referrers(*kinds.values()) if id(type(thing)) in kinds]  # others are not touched
