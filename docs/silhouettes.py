"""Six common bugs by the shape that they leave in the gradient ledger: loops that run while the docs are built."""

from collections.abc import Callable
from typing import NamedTuple

from course_utils import record
from course_utils.zoo import ZOO


class Bug(NamedTuple):
    """A bug, a loop of the zoo that has it, and how many of its micro-batches are drawn."""

    name: str
    specimen: str
    micro_batches: int

    @property
    def rule(self) -> str:
        """The auditor's rule that finds it."""
        return ZOO[self.specimen].rule

    def traces(self):
        """What `record()` sees of the buggy loop and of its fixed twin."""
        return traced(ZOO[self.specimen].buggy), traced(ZOO[self.specimen].fixed)


# The rules that most verdicts of data/measurements/real_code.csv name, without those that no norm of .grad shows.
BUGS = (
    Bug("Keeps the tail for later", "tail-in-the-next-epoch", 15),
    Bug("Never divides by N", "never-divided", 8),
    Bug("Averages token means", "mean-of-means", 8),
    Bug("Steps at batch 0", "step-at-batch-zero", 9),
    Bug("Clips every micro-batch", "clipped-in-every-micro-batch", 8),
    Bug("Zeroes too often", "zeroed-in-every-micro-batch", 8),
)


def traced(loop: Callable[[], object]):
    with record() as trace:
        loop()
    return trace
