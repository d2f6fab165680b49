"""The exercise of notebook 10: one window of micro-batches on two real ranks, with a single all-reduce of gradients."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from course_utils.practice.bench import Exercise, Mistake, Seen, agree, edits
from course_utils.practice.loop import Gradient, one_rank, require_step
from course_utils.ranks import RankError, Ranks
from course_utils.recording import count_collectives

_HANG = 6.0  # seconds after which two ranks that do not end are taken to wait for each other

# The group that runs answers, once one has been run. An error ends it, and the next run starts it again.
_two: list[Ranks] = []

Batch = tuple[Tensor, Tensor]


class Case(tuple):
    """For each window, for each rank, the samples of its micro-batches."""

    def __str__(self) -> str:
        ranks = [f"micro-batches of {list(sizes)} samples on rank {rank}" for rank, sizes in enumerate(self[0])]
        return " and ".join(ranks)


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


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def watch(answer: Callable, case: Case) -> Seen:
    """Watches one window on one rank, which finds what is not attempted, and errors with the learner's own line; or
    all windows of a case on two ranks."""
    if len(case) > 1:
        return _on_two_ranks(answer, case)
    with one_rank():
        (seen,) = _run(answer, case)
    require_step(seen["gradients"], seen["backwards"])
    return {"on one rank, the step found a gradient": seen["gradients"][0] is not None}


def _run(answer: Callable, case: Sequence) -> list[dict]:
    """On this rank: what the answer does in each window of a case."""
    rank, found, grads, arrived = dist.get_rank(), [], [], []
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model, optimizer = DistributedDataParallel(bare), SGD(bare.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: grads.append(_flat(bare)))
    bare[0].weight.register_hook(arrived.append)
    size = sum(p.nbytes for p in bare.parameters())
    for place, window in enumerate(case):
        random = torch.Generator().manual_seed(10 * place + rank)
        batches = [
            (
                torch.randn(samples, 6, generator=random, dtype=torch.float64),
                torch.randint(3, (samples,), generator=random),
            )
            for samples in window[rank]
        ]
        grads.clear()
        arrived.clear()
        with count_collectives() as sent:
            answer(model, batches, mean_loss, optimizer)
        reduced = sent.bytes["all-reduce"] // size
        found.append({"gradients": [*grads], "backwards": len(arrived), "reduced": reduced})
    return found


def _flat(model: nn.Module) -> Tensor | None:
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(grads).clone() if grads else None


def _on_two_ranks(answer: Callable, case: Case) -> Seen:
    if not _two:
        _two.append(Ranks(2, backend="gloo"))
    try:
        zero, one = _two[0].run(_run, answer, list(case), timeout=_HANG)
    except RankError as error:
        waiting = [rank for rank, text in error.errors.items() if text.startswith("had not ended")]
        failed = {rank: text for rank, text in error.errors.items() if rank not in waiting}
        if any("gloo" in text for text in failed.values()):  # two collectives of different sizes have met
            raise Mistake("waits", f"{case}: the ranks met in two different collectives.") from None
        if failed:
            rank, text = next(iter(failed.items()))
            said = text.rstrip().splitlines()[-1]
            raise Mistake("raises", f"{case}: on rank {rank}, {said}") from None
        who = "both ranks wait" if len(waiting) > 1 else f"rank {waiting[0]} waits, and rank {1 - waiting[0]} has ended"
        raise Mistake("waits", f"{case}: {who}.") from None
    seen = {}
    for k, (here, there) in enumerate(zip(zero, one, strict=True), start=1):
        gradients = [rank["gradients"][0] if rank["gradients"] else None for rank in (here, there)]
        seen |= {
            f"window {k}: steps on the two ranks": [len(here["gradients"]), len(there["gradients"])],
            f"window {k}: the step finds a gradient": gradients[0] is not None,
            f"window {k}: the ranks have the same gradient": agree(*gradients),
            f"window {k}: how often the gradients are all-reduced": here["reduced"],
            f"window {k}": Gradient(gradients[0]),
        }
    return seen


ZERO, STEP = "optimizer.zero_grad()", "optimizer.step()"
DDP_WINDOW = Exercise(
    "ddp_window",
    "10_ranks",
    watch,
    solution,
    cases=[
        Case([((4, 2),)]),
        Case([((4, 4, 4), (4, 4, 4))] * 2),
        Case([((5, 1, 3), (2, 7, 6)), ((1, 2), (9, 4)), ((3,), (8,))]),
    ],
    edits=[
        *edits("sync-cadence/each", "nullcontext() if last else model.no_sync()", "nullcontext()"),
        *edits("stale-gradients", ZERO, "", "dist.get_rank() or optimizer.zero_grad()"),
        *edits("loss-scale", " * dist.get_world_size()", ""),
        *edits("token-weights", "dist.all_reduce(total)", "total *= dist.get_world_size()"),
        *edits("token-weights/equal", "len(batch[0]) / total * dist.get_world_size()", "1 / len(window)"),
        *edits("by-hand", STEP, f"for p in model.parameters(): dist.all_reduce(p.grad)\n{STEP}"),
    ],
    channels={
        "on one rank, the step found a gradient": "empty-step",
        **{
            f"window {k}: {what}": bug
            for k in range(1, 4)
            for what, bug in (
                ("steps on the two ranks", "irregular-window"),
                ("the step finds a gradient", "empty-step"),
                ("the ranks have the same gradient", "ranks-differ"),
                ("how often the gradients are all-reduced", "sync-cadence"),
            )
        },
    },
    extra=40.0,
)
