"""The exercise of notebook 10: one window on two real ranks, with one all-reduce of gradients."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.exercises.judging import Mistake, agree, compare, exercise
from course_utils.exercises.loop import Case, Loop, one_rank, require_step
from course_utils.ranks import RankError, Ranks
from course_utils.recording import count_collectives

_HANG = 6.0  # seconds after which two ranks that do not end are taken to wait for each other


@cache
def _two_ranks() -> Ranks:
    """The group that runs answers. An error ends it, and the next run starts it again."""
    return Ranks(2, backend="gloo")


def solution(model, window, loss_fn, optimizer):
    total = torch.tensor(sum(len(inputs) for inputs, _ in window))
    dist.all_reduce(total)
    for number, batch in enumerate(window, start=1):
        last = number == len(window)
        with nullcontext() if last else model.no_sync():
            share = len(batch[0]) / total * dist.get_world_size()
            loss = loss_fn(model, batch) * share
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def watch(answer: Callable, case: Case) -> dict:
    """Watches windows on one rank, which finds errors with the learner's own line, or on two."""
    if case.ranks == 1:
        with one_rank():
            updates, _ = _run(answer, case)
        require_step(updates.steps, updates.ran)
        return {"updates": updates}
    try:
        (here, sent), (there, _) = _two_ranks().run(_run, answer, case, timeout=_HANG)
    except RankError as error:
        for rank, text in error.errors.items():
            if not text.startswith("had not ended") and "gloo" not in text:  # there, two other collectives have met
                said = f"on rank {rank}, {text.rstrip().splitlines()[-1]}"
                hint = "`all_reduce` takes a tensor. If only one rank fails, is it its data?"
                raise Mistake("raises", f"{case}: {said}", hint) from None
        hint = (
            "Ranks must call equally many collectives. Is one of yours in an `if` that only one rank enters, or does "
            "it depend on this rank's own data?"
        )
        message = f"{case}: a rank waits for the other one, which is elsewhere or has ended."
        raise Mistake("waits", message, hint) from None
    here.ran |= there.ran
    return {
        "the ranks step with the same gradients": agree(
            [step.row for step in here.steps], [step.row for step in there.steps]
        ),
        "updates": here,
        "how often each window all-reduces its gradients": sent,
    }


def _run(answer: Callable, case: Case) -> tuple[Loop, list[int]]:
    """On this rank: the updates, and how often the gradients were all-reduced in each window."""
    loop, sent = Loop(case), []
    model = DistributedDataParallel(loop.model)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return loop.loss_fn(model, batch[0])

    def call(batches: list[Tensor]) -> None:
        own = len(batches) // case.ranks
        window = [(batch, batch) for batch in batches[own * dist.get_rank() :][:own]]
        with count_collectives() as counted:
            answer(model, window, loss_fn, loop.optimizer)
        sent.append(counted.bytes["all-reduce"] // sum(p.nbytes for p in loop.model.parameters()))

    return loop.run(call)["updates"], sent


CASES = [
    Case((4, 2), ranks=1),
    Case((4,) * 6, (4,) * 6, ranks=2),
    Case((5, 1, 3, 2, 7, 6), (1, 2, 9, 4), (3, 8), ranks=2),
]
CHANNELS = {
    "the ranks step with the same gradients": (
        "ranks-differ", "the last backward pass has to send the whole window",
        "Each rank steps by its own `.grad`. Which backward pass of the window has to send, and does it?"),
    "how often each window all-reduces its gradients": (
        "sync-cadence", "once is enough",
        "Which call decides whether the coming backward pass will send, and is it inside `no_sync()`? See Step 3."),
}  # fmt: skip


@exercise(extra=40.0)
def ddp_window(answer):
    compare(watch, answer, solution, CASES, **CHANNELS)
    return (
        "two ranks, windows of one to three micro-batches, equal and ragged: the gradients were all-reduced once per "
        "window, and each update is that of one process with the samples of both ranks."
    )
