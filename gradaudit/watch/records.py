"""What is noted of an optimizer while the script runs, until the next event or the next update."""

from torch import Tensor

from gradaudit.history import AuditedRecord
from gradaudit.watch.optimizers import may_collect, steps_its_own_way
from gradaudit.watch.samples import Sample, sample

_SAMPLED = 3  # parameters whose numbers are remembered


class WatchedRecord(AuditedRecord):
    """An optimizer's record, and the window that is being filled.

    Attributes:
        steps: Is it known that something uses its gradients?
        cleared: Have its gradients been zeroed?
        scaled: The scaler's factor that is in .grad.
        scaler: A reference to the one that made it.
        weights: The version of its parameters at the last backward call; -1 before the first.
        moved: They changed before it made any step, and were not seen to be written.
        rose: They changed before it made any step, and their versions rose.
        strays: They have been seen to change through `.data` between a backward call and a zeroing.
        by_data: The script has been seen to change gradients through `.data`, before the last step that was looked at.
        clips_by_data: It has been seen to do so before clipping.
        samples: Of some parameters, as the last backward call left them.
    """

    steps = True

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.own_step, self.collects = steps_its_own_way(args[0]), may_collect(args[0])
        self.cleared = self.moved = self.rose = self.strays = self.by_data = self.clips_by_data = False
        self.scaled, self.scaler = 1.0, None
        self.weights = -1
        self.samples: list[tuple[Tensor, Sample]] = []
        self.stepped_with: list[tuple[Tensor, Sample]] = []  # those that belonged to the last step
        self.tries_again = False  # a step has been made once more from the same weights

    def let_go(self) -> None:
        self.samples, self.stepped_with = [], []

    def take_samples(self) -> None:
        """In the first updates: a script may write through `.data`, which raises no version."""
        self.notice_a_move()
        parameters = self.gradients.parameters
        found = [(p, sample(p)) for p in (parameters[place] for place in self.gradients.touched[:_SAMPLED])]
        self.samples = [(p, numbers) for p, numbers in found if numbers is not None]

    def notice_a_move(self) -> None:
        moved = any(then.move(p) is not None for p, then in self.samples)
        self.moved |= not self.made and moved
        self.strays |= moved

    def rewritten(self) -> bool:
        """Are the gradients, whose versions are those of the last backward call, no longer what it left?"""
        return any(then.differs(p.grad) for p, then in self.samples)

    def back_where_it_was(self) -> bool:
        """Are the weights again those that the last backward call was made with, although a step has been made?"""
        moves = [moved for p, then in self.stepped_with if (moved := then.move(p)) is not None]
        return bool(moves) and not any(moved.any() for moved in moves)
