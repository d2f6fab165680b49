"""The exercises of notebook 10, on two real ranks: a sum over them, and the loop."""

from itertools import zip_longest
from math import inf

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_utils import my_loop
from course_utils.collectives import count_collectives
from course_utils.exercises import nb09_amp
from course_utils.exercises.deadline import line_of
from course_utils.exercises.judging import NAMES, Mistake, agree, compare, exercise, number, same
from course_utils.exercises.loop import Case, twice
from course_utils.ranks import RankError, Ranks

HANG = 6.0  # seconds after which two ranks that do not end are taken to wait for each other
RANKS = Ranks(2)  # they start at the first run, and after an error
EPOCH = (5, 1, 3, 2, 7, 6, 1, 2, 9, 4, 3, 8)  # every other batch is rank 1's
CASES = [
    twice(EPOCH, ranks=2, n=4, max_norm=1e6, scaler="on"),
    twice(EPOCH, ranks=2, n=2, max_norm=10.0, scaler="on", spikes={4: inf, 19: inf}),
    twice(EPOCH, ranks=2, n=3, max_norm=10.0, scaler="off", spikes={5: 64.0}),
]
ALONE = [Case(*case.calls, ranks=1, **case.settings) for case in nb09_amp.SCALED[1:4]]
SYNCS = "all-reduces of the gradients, by epoch"
SENDS = "Which backward pass of the window has to send, which call decides that, and when? See Step 3."
EQUALLY = "Ranks must call equally many collectives, with tensors. Does one depend on the rank, or on its data?"
SUM = "all_reduce writes the sum into its tensor, on every rank. What does your function return, with how many digits?"


def on_two(call, *args):
    """What a call returns on both ranks. An error there, or a rank that waits, is a mistake."""
    RANKS.run(len, args)  # imports what they need, which may take longer than a call
    try:
        return RANKS.run(call, *args, timeout=HANG)
    except RankError as error:
        waits = []
        for rank, text in error.errors.items():
            where = ", ".join(filter(None, (f"on rank {rank}", line_of(text))))
            if not text.startswith("had not ended") and "gloo" not in text:  # there, two other collectives have met
                raise Mistake("raises", f"{where}: {text.rstrip().splitlines()[-1]}.", NAMES) from None
            waits.append(where)
        says = f"stuck {'; '.join(waits)}: the other rank is elsewhere or has ended."
        raise Mistake("waits", says, EQUALLY) from None
    except KeyboardInterrupt as stop:
        where = [f", on rank {text[0]}, {line}" for text in str(stop).split("\nrank ") if (line := line_of(text))]
        raise KeyboardInterrupt("".join(where[:1])) from None


def run(answer, case):
    """On this rank: what is seen of its epochs, and how often their gradients were all-reduced."""
    torch.default_generator.manual_seed(1)
    wrapped, sent = [], []

    def epoch(model, batches, *more):
        wrapped.append(wrapped[0] if wrapped else DistributedDataParallel(model))
        with count_collectives() as counted:
            losses = answer(wrapped[0], batches[dist.get_rank() :: 2], *more)
        sent.append(counted.bytes["all-reduce"] // sum(p.nbytes for p in model.parameters()))
        return losses

    seen = nb09_amp.watch(epoch, case)
    seen["updates"].optimizer = None  # its hooks can't travel
    return seen | {SYNCS: sent}


def watch(answer, case):
    here, there = on_two(run, answer, case)
    ours, theirs = here["updates"], there["updates"]
    for step, other in zip_longest(ours.steps, theirs.steps):
        if not (step and other and agree(step.row, other.row)):
            says = f"at update {(step or other).number} the ranks' gradients differ, or only one rank makes it."
            raise Mistake("ranks-differ", says, SENDS)
    ours.ran |= theirs.ran
    return here


@exercise(
    "alone as before; on two ranks one all-reduce of gradients per window, and the updates of one process.", extra=40.0
)
def ddp_window(answer):
    right = my_loop.train_of(my_loop.of_the_course("10"))
    compare(nb09_amp.watch, answer, right, ALONE, **nb09_amp.MISTAKES)  # an error shows the own line
    compare(watch, answer, right, CASES, **nb09_amp.MISTAKES | {SYNCS: ("sync-cadence", SENDS)})


def added(answer):
    torch.set_default_dtype(torch.float32)  # as in most scripts
    return answer(1.5 + 2**24 * dist.get_rank())  # whose sum needs more digits than float32 has


@exercise("the sum on both ranks, and in one process the number itself.", extra=40.0)
def over_ranks(answer):
    same("over_ranks(3) in one process", number(answer(3)), 3.0, "wrong-value", "Alone, is there anything to add?")
    sums = [number(found) for found in on_two(added, answer)]
    if sums != [2**24 + 3] * 2:
        found = f"over_ranks(1.5) on rank 0 and over_ranks(16777217.5) on rank 1 return {sums[0]} and {sums[1]}"
        raise Mistake("wrong-sum", f"{found}; the sum is 16777219.", SUM)
