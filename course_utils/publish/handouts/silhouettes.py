"""What the sheet for the wall draws: the ledgers of loops that run while it is built.

A ledger is a list of points (micro-batch, norm of `.grad`, kind of event, micro-batches in `.grad`), one per event. The
k-th backward pass is at k, counted from 0, and what happens between two of them lies between them. So a buggy loop and
its fixed twin can be drawn over each other, micro-batch by micro-batch.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch.nn.functional import cross_entropy

from course_utils.recording import Trace, record
from course_utils.zoo import ZOO
from course_utils.zoo.props import classifier, digit_batches

Point = tuple[float, float, str, int]


class Bug(NamedTuple):
    """A bug of the sheet: the rule that finds it, a loop of the zoo that has it, its name, and how much is drawn."""

    rule: str
    specimen: str
    name: str
    micro_batches: int


# The rules that most verdicts of data/measurements/real_code.csv name, without those that no norm of .grad shows.
BUGS = (
    Bug("leftover-gradients", "tail-in-the-next-epoch", "Keeps the tail for later", 15),
    Bug("loss-scale", "never-divided", "Never divides by N", 8),
    Bug("token-weights", "mean-of-means", "Averages token means", 8),
    Bug("irregular-window", "step-at-batch-zero", "Steps at batch 0", 9),
    Bug("clip-timing", "clipped-in-every-micro-batch", "Clips every micro-batch", 8),
    Bug("discarded-gradients", "zeroed-in-every-micro-batch", "Zeroes too often", 8),
)


def ledgers() -> dict[str, list[Point]]:
    """One loop three times: with zeroing after every step, in windows of 4, and without zeroing.

    The windows hold the images of the first two large batches, in micro-batches of a quarter of their size.
    """

    def train(batches: Iterable, n: int = 1, zero: bool = True) -> None:
        model, optimizer = classifier()
        for k, (images, labels) in enumerate(batches, start=1):
            (cross_entropy(model(images), labels) / n).backward()
            if k % n == 0:
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

    large, small = digit_batches(4, size=32), digit_batches(8, size=8)
    return {
        "zeroed": recorded(lambda: train(large)),
        "windows": recorded(lambda: train(small, n=4)),
        "never": recorded(lambda: train(large, zero=False)),
    }


def silhouettes() -> dict[str, tuple[list[Point], list[Point]]]:
    """For each of `BUGS`, by rule, the ledgers of the buggy loop and of its fixed twin, as far as they are drawn."""
    found = {}
    for bug in BUGS:
        loops = ZOO[bug.specimen].buggy, ZOO[bug.specimen].fixed
        found[bug.rule] = tuple([p for p in recorded(loop) if p[0] < bug.micro_batches] for loop in loops)
    return found


def recorded(loop: Callable[[], object]) -> list[Point]:
    """The ledger of a loop with one optimizer."""
    with record() as trace:
        loop()
    return points(trace)


def points(trace: Trace) -> list[Point]:
    """A trace's ledger.

    >>> from course_utils.recording.trace import Event
    >>> trace = Trace([Event("backward", "SGD", 0.5, 1), Event("step", "SGD", 0.5, 1), Event("zero", "SGD", 0.0, 0)])
    >>> [(round(x, 2), norm) for x, norm, _, _ in points(trace)]
    [(0.0, 0.5), (0.33, 0.5), (0.67, 0.0)]
    """
    events = [event for event in trace.on() if event.kind != "forward"]
    starts = [place for place, event in enumerate(events) if event.kind == "backward"]
    found = []
    for k, (start, end) in enumerate(zip(starts, [*starts[1:], len(events)], strict=True)):
        for j, event in enumerate(events[start:end]):
            found.append((k + j / (end - start), event.norm, event.kind, event.held))
    return found
