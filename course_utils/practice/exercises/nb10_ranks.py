"""The exercise of notebook 10: one window of micro-batches on two real ranks, with a single all-reduce of gradients."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.practice.bench import Exercise, Mistake, Seen, agree, edits
from course_utils.practice.loop import Case, Loop, Updates, one_rank, require_step
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


def watch(answer: Callable, case: Case) -> Seen:
    """Watches windows on one rank, which finds errors with the learner's own line, or on two."""
    if case.ranks == 1:
        with one_rank():
            updates, _ = _run(answer, case)
        require_step(updates.rows, updates.ran)
        return {"updates": updates}
    try:
        (here, sent), (there, _) = _two_ranks().run(_run, answer, case, timeout=_HANG)
    except RankError as error:
        for rank, text in error.errors.items():
            if not text.startswith("had not ended") and "gloo" not in text:  # there, two other collectives have met
                raise Mistake("raises", f"{case}: on rank {rank}, {text.rstrip().splitlines()[-1]}") from None
        raise Mistake("waits", f"{case}: a rank waits for the other one, which is elsewhere or has ended.") from None
    here.ran |= there.ran
    return {
        "the ranks step with the same gradients": agree(here.rows, there.rows),
        "updates": here,
        "how often each window all-reduces its gradients": sent,
    }


def _run(answer: Callable, case: Case) -> tuple[Updates, list[int]]:
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
        sent.append(counted.bytes["all-reduce"] // loop.model.weight.nbytes)

    return loop.run(call)["updates"], sent


STEP = "optimizer.step()"
DDP_WINDOW = Exercise(
    "ddp_window",
    "10_ranks",
    watch,
    solution,
    cases=[
        Case(((4, 2),)),
        Case(((4,) * 6,) * 2, ranks=2),
        Case(((5, 1, 3, 2, 7, 6), (1, 2, 9, 4), (3, 8)), ranks=2),
    ],
    edits=[
        *edits("sync-cadence/each", "nullcontext() if last else model.no_sync()", "nullcontext()"),
        *edits("loss-scale", " * dist.get_world_size()", ""),
        *edits("token-weights", "dist.all_reduce(total)", "pass", "total *= dist.get_world_size()"),
        *edits("token-weights/equal", "len(batch[0]) / total * dist.get_world_size()", "1 / len(window)"),
        *edits("by-hand", STEP, f"for p in model.parameters(): dist.all_reduce(p.grad)\n{STEP}"),
    ],
    channels={
        "the ranks step with the same gradients": "ranks-differ",
        "how often each window all-reduces its gradients": "sync-cadence",
    },
    extra=40.0,
)
