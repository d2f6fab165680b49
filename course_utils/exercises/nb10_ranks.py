"""The exercise of notebook 10: one window on two real ranks, with one all-reduce of gradients."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_utils.collectives import count_collectives
from course_utils.exercises.judging import Mistake, agree, exercise, same
from course_utils.exercises.loop import Case, Loop, one_rank
from course_utils.loops import train_epoch
from course_utils.ranks import RankError, Ranks

HANG = 6.0  # seconds after which two ranks that do not end are taken to wait for each other
RANKS = Ranks(2)  # they start at the first run, and after an error
ALONE, CASE = Case((4, 2), (3, 1)), Case((5, 1, 3, 2, 7, 6), (1, 2, 9, 4), (3, 8))
SENDS = "Which backward pass of the window has to send, which call decides that, and when? See Step 3."
EQUALLY = "Ranks must call equally many collectives, with tensors. Does one depend on the rank, or on its data?"


def run(answer, case):
    """On this rank: the updates, and how often the gradients were all-reduced in each window."""
    torch.default_generator.manual_seed(1)
    loop, sent = Loop(case), []
    model = DistributedDataParallel(loop.model)

    def call(batches):
        own = len(batches) // dist.get_world_size()
        window = [(batch, batch) for batch in batches[own * dist.get_rank() :][:own]]
        with count_collectives() as counted:
            answer(model, window, lambda model, batch: loop.loss_fn(model, batch[0]), loop.optimizer)
        sent.append(counted.bytes["all-reduce"] // sum(p.nbytes for p in loop.model.parameters()))

    return loop.run(call)["updates"], sent


def solution(model, window, loss_fn, optimizer):
    train_epoch(model, window, loss_fn, optimizer, len(window), lambda batch: len(batch[0]))


@exercise(
    "ragged windows: one all-reduce of gradients each, and the updates of one process with all of the samples.",
    extra=40.0,
)
def ddp_window(answer):
    with one_rank():  # an error shows here with the learner's own line
        run(answer, ALONE)[0].compare(run(solution, ALONE)[0])
        want, _ = run(solution, CASE)
    try:
        (here, sent), (there, _) = RANKS.run(run, answer, CASE, timeout=HANG)
    except RankError as error:
        for rank, text in error.errors.items():
            if not text.startswith("had not ended") and "gloo" not in text:  # there, two other collectives have met
                raise Mistake("raises", f"on rank {rank}, {text.rstrip().splitlines()[-1]}", EQUALLY) from None
        raise Mistake("waits", "a rank waits for the other one, which is elsewhere or has ended.", EQUALLY) from None
    alike = agree([step.row for step in here.steps], [step.row for step in there.steps])
    same("both ranks step with the same gradients", alike, True, "ranks-differ", SENDS)
    here.ran |= there.ran
    here.compare(want)
    same("all-reduces of the gradients, by window", sent, [1, 1, 1], "sync-cadence", SENDS)
