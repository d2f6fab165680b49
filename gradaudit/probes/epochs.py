"""Which pass over a data set a backward call belongs to, where batches come from a DataLoader."""

from operator import length_hint
from weakref import WeakKeyDictionary, ref

from torch.utils.data.dataloader import _BaseDataLoaderIter


class Epochs:
    """Counts the passes over the loader that a script trains on; of several at once, over one of them.

    A loader belongs to the training if its batch was the last one drawn before a backward call. Evaluation draws
    batches too, but its last one is never followed by a backward call.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: ref | None = None  # the iterator of the last batch; the script decides how long it lives
        self.main: ref | None = None  # the iterator whose passes are counted
        self.cut_short = False  # whether the last batch came from the middle of a loader's data
        self.drawn_from: WeakKeyDictionary[_BaseDataLoaderIter, int] = WeakKeyDictionary()  # batches, at a backward

    def drawn(self, iterator: _BaseDataLoaderIter) -> None:
        self.last = ref(iterator)
        self.cut_short = iterator._num_yielded < length_hint(iterator)

    def of_this_batch(self) -> int | None:
        """The pass that the last batch is from; None if it is from no loader, or from one that never ends."""
        iterator, main = (None if known is None else known() for known in (self.last, self.main))
        if iterator is None:
            return self.count or None
        drawn = iterator._num_yielded
        if drawn > length_hint(iterator):
            return None
        begins = drawn < self.drawn_from.get(iterator, drawn + 1)  # it is new, or its workers begin again
        self.drawn_from[iterator] = drawn
        if begins and (main is None or main is iterator or main._num_yielded >= length_hint(main)):
            self.count += 1
            self.main = self.last
        return self.count
