"""The exercise of notebook 10: one window of micro-batches on two real ranks, with a single all-reduce of gradients."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, rounded
from course_utils.ranks import RankError, Ranks
from course_utils.recording import count_collectives

# For each case, the windows that the ranks run one after the other: for each rank the samples of its micro-batches.
CASES = (
    [((4, 4, 4), (4, 4, 4))] * 2,
    [((5, 1, 3), (2, 7, 6)), ((1, 2), (9, 4)), ((3,), (8,))],
)
_FEATURES, _CLASSES = 6, 3
_HANG = 6.0  # seconds after which two ranks that do not end are taken to wait for each other

# The group that runs answers, once one has been run. An error ends it, and the next run starts it again.
_two: list[Ranks] = []

Batch = tuple[Tensor, Tensor]
Window = Sequence[Sequence[int]]


class Seen(NamedTuple):
    """What one rank saw in one window."""

    grads: list[Tensor | None]  # at each step
    backwards: int
    reduced: int  # how often gradients were all-reduced, by the bytes
    weights: Tensor


@exercise(
    "ddp_window",
    extra=40.0,
    hints={
        "sync-cadence": "Which call decides whether the coming backward pass will send, and is it inside `no_sync()`? "
        "See Step 3.",
        "ranks-differ": "Each rank steps by its own `.grad`. Which backward pass of the window has to send, and does "
        "it?",
        "waits": "Ranks must call equally many collectives. Is one of yours in an `if` that only one rank enters, or "
        "does it depend on this rank's own data?",
        "token-weights": "What has each micro-batch's mean to be multiplied by, so that every sample of both ranks "
        "counts the same? See Step 5.",
        "loss-scale": "Every sample counts the same, but too little or too much. What does DDP divide by?",
        "irregular-window": "The whole list is one window: how often does the optimizer step?",
        "by-hand": "`no_sync()` leaves the average to the last backward pass: what does your own all-reduce add?",
        "raises": "The last line names the error. `all_reduce` takes a tensor. If only one rank fails, is it its data?",
    },
)
def _ddp_window(answer: Callable) -> str:
    _alone(answer)
    for case in CASES:
        windows = [_shown(window) for window in case]
        found = _on_two_ranks(answer, case, windows[0])
        want = _expected(case)
        for k, (window, seen) in enumerate(zip(case, zip(*found, strict=True), strict=True)):
            _judge(list(seen), window, want[k], windows[k], old=want[k - 1] if k else None)
    return (
        "two ranks, windows of one to three micro-batches, equal and ragged: the gradients were all-reduced once per "
        "window, and each update is that of one process with the samples of both ranks."
    )


def _shown(window: Window) -> str:
    return f"micro-batches of {list(window[0])} samples on rank 0 and {list(window[1])} on rank 1"


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_FEATURES, 8), nn.Tanh(), nn.Linear(8, _CLASSES)).double()


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def _batches(window: Window, place: int) -> list[list[Batch]]:
    """For each rank, its micro-batches in this window."""
    random = torch.Generator().manual_seed(place)

    def batch(size: int) -> Batch:
        inputs = torch.randn(size, _FEATURES, generator=random, dtype=torch.float64)
        return inputs, torch.randint(_CLASSES, (size,), generator=random)

    return [[batch(size) for size in sizes] for sizes in window]


def _flat(model: nn.Module) -> Tensor | None:
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(grads).clone() if grads else None


class _Alone(nn.Module):
    """Stands for DDP where there is one rank: then there is nothing to average."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.require_backward_grad_sync = module, True

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


def _alone(answer: Callable) -> None:
    """One window on one rank of this process: finds what is not attempted, and errors with the learner's own line."""
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        (seen,) = _run(answer, [((4, 2),)], _Alone)
    finally:
        if started:
            dist.destroy_process_group()
    if not seen.backwards and not seen.grads:
        raise Mistake("not-attempted", "no backward pass and no step has run yet.")
    if not seen.grads:
        raise Mistake("leftover-gradients", "on one rank: gradients are there, and no step has used them.")
    if all(grad is None for grad in seen.grads):
        raise Mistake("empty-step", "on one rank: the step found no gradient.")


def _run(answer: Callable, case: Sequence[Window], wrap: Callable) -> list[Seen]:
    """On this rank: what the answer does in each window of a case."""
    rank, bare = dist.get_rank(), _model()
    model, optimizer, found = wrap(bare), SGD(bare.parameters(), lr=0.1), []
    grads: list[Tensor | None] = []
    arrived: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: grads.append(_flat(bare)))
    bare[0].weight.register_hook(arrived.append)
    size = sum(p.nbytes for p in bare.parameters())
    for place, window in enumerate(case):
        grads.clear()
        arrived.clear()
        with count_collectives() as sent:
            answer(model, _batches(window, place)[rank], _loss, optimizer)
        reduced = sent.bytes["all-reduce"] // size
        weights = nn.utils.parameters_to_vector(bare.parameters()).detach().clone()
        found.append(Seen([*grads], len(arrived), reduced, weights))
    return found


def _on_two_ranks(answer: Callable, case: Sequence[Window], where: str) -> list[list[Seen]]:
    if not _two:
        _two.append(Ranks(2, backend="gloo"))
    try:
        return _two[0].run(_run, answer, case, DistributedDataParallel, timeout=_HANG)
    except RankError as error:
        waiting = [rank for rank, text in error.errors.items() if text.startswith("had not ended")]
        failed = {rank: text for rank, text in error.errors.items() if rank not in waiting}
        if any("gloo" in text for text in failed.values()):  # two collectives of different sizes have met
            raise Mistake("waits", f"{where}: the ranks met in two different collectives.") from None
        if failed:
            rank, text = next(iter(failed.items()))
            said = text.rstrip().splitlines()[-1]
            raise Mistake("raises", f"{where}: on rank {rank}, {said}") from None
        who = "both ranks wait" if len(waiting) > 1 else f"rank {waiting[0]} waits, and rank {1 - waiting[0]} has ended"
        raise Mistake("waits", f"{where}: {who}.") from None


def _expected(case: Sequence[Window]) -> list[Tensor]:
    """The gradient of each window in one process, which makes the same updates."""
    model, wanted = _model(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    for place, window in enumerate(case):
        parts = [batch for rank in _batches(window, place) for batch in rank]
        optimizer.zero_grad()
        _loss(model, tuple(map(torch.cat, zip(*parts, strict=True)))).backward()
        wanted.append(_flat(model))
        optimizer.step()
    return wanted


def _judge(seen: list[Seen], window: Window, want: Tensor, where: str, old: Tensor | None) -> None:
    """Raises a `Mistake` unless both ranks made the update of one process, with one all-reduce of the gradients."""
    for rank, one in enumerate(seen):
        if len(one.grads) != 1:
            raise Mistake("irregular-window", f"{where}: rank {rank} made {len(one.grads)} steps; expected one.")
    got, other = (one.grads[0] for one in seen)
    if got is None or other is None:
        raise Mistake("empty-step", f"{where}: the step found no gradient.")
    if not close(got, other):
        hint = "all-reduced nothing" if not seen[0].reduced else "did not share the whole window"
        raise Mistake("ranks-differ", f"{where}: the ranks {hint}, and their gradients differ.")
    n = len(window[0])
    if seen[0].reduced != 1:
        many = f"{where}: gradients were all-reduced {seen[0].reduced} times; expected once"
        if close(got, want) or seen[0].reduced == n:
            raise Mistake("sync-cadence", f"{many}.")
        raise Mistake("by-hand", f"{many}.")
    if close(got, want):
        return
    if old is not None and any(close(got, want + old * share) for share in (0.5, 1.0)):
        raise Mistake("stale-gradients", f"{where}: the gradient of the window before is in this update.")
    ratio = float(got @ want / (want @ want))
    if ratio > 0 and close(got, want * ratio):
        extra = ": DDP divides by the ranks once more" if close(ratio, 0.5) else ""
        raise Mistake("loss-scale", f"{where}: the update is {rounded([ratio])[0]} times what it should be{extra}.")
    raise Mistake("token-weights", f"{where}: some samples count more than others in the update.")
