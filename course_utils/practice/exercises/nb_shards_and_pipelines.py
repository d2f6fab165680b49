"""The exercise of *shards and pipelines*: several calls of a pipeline make one update; each valid token counts once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, close, rounded

IGNORED = -100
_OLD = 7.0  # every entry of the gradient that an earlier backward pass has left, in a case that starts dirty

# For each case: the valid targets of each sequence, by call, and the number of micro-batches of a call.
CASES = (
    ([[2, 2, 2, 2]], 2),
    ([[5, 1, 2, 6]], 2),
    ([[1, 2, 6, 5, 3, 4, 1, 1]], 4),
    ([[5, 1, 2, 6]], 1),
    ([[3, 3, 3, 3], [3, 3, 3, 3]], 2),
    ([[6, 6, 5, 6], [1, 1, 2, 1]], 4),
    ([[2, 5, 1, 4], [6, 1, 3, 2], [1, 1, 4, 6]], 2),
    ([[0, 0, 4, 1], [3, 2, 0, 0]], 2),
)
_WIDTH, _CLASSES = 6, 5

Batch = tuple[Tensor, Tensor]


@exercise(
    "pipeline_update",
    hints={
        "token-weights": "A mean per micro-batch gives short ones the same say. See Step 7: sum, and divide by what?",
        "forgotten-calls": "Step 8: `scale_grads` divides what is in `.grad`, at the end of every call.",
        "scale-grads": "The loss has divided by all tokens. Who divides once more? Look at the schedule's arguments.",
        "own-call": "One update is one window. Over which calls does its number of tokens go?",
        "loss-scale": "Follow one token: what divides its loss in your function, and what divides after it?",
        "irregular-window": "All calls make one update together. How often does your optimizer step?",
        "nan": "A micro-batch without a valid target: its mean is 0/0. A sum over nothing is 0.",
        "raises": "All calls have the same shapes, so one schedule serves them all. What does the last line say?",
    },
)
def _pipeline_update(answer: Callable) -> str:
    with _one_rank():
        for lengths, n in CASES:
            _judge(answer, lengths, n)
        _judge(answer, CASES[1][0], 2, dirty=True)
    return (
        "one to three calls of one to four micro-batches, ragged sequences, a micro-batch without a valid target, "
        "old gradients: one update each, and every valid target counts as in the large batch."
    )


@contextmanager
def _one_rank() -> Iterator[None]:
    """A group of this process alone, which is all that a pipeline of one stage needs."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _judge(answer: Callable, lengths: Sequence[Sequence[int]], n: int, dirty: bool = False) -> None:
    from torch.distributed.pipelining import PipelineStage  # slow to import

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(_CLASSES, 3), nn.Tanh(), nn.Linear(3, _CLASSES)).double()
    calls = [_batch(call) for call in lengths]
    counts = [[int((targets != IGNORED).sum()) for targets in call.chunk(n)] for _, call in calls]
    case = f"{len(calls)} calls" if len(calls) > 1 else "one call"
    case += f" with {' and '.join(map(str, counts))} valid targets in the micro-batches"
    case += ", and a gradient left by an earlier backward pass" if dirty else ""
    sums = [[_gradient(model, *part) for part in zip(*(t.chunk(n) for t in call), strict=True)] for call in calls]
    model.zero_grad()
    if dirty:
        for p in model.parameters():
            p.grad = torch.full_like(p, _OLD)

    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.0), []
    optimizer.register_step_pre_hook(lambda *_: found.append(_flat(model)))
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    given = [(inputs.clone(), targets.clone()) for inputs, targets in calls]
    answer(stage, optimizer, given, n)

    if not found:
        if all(p.grad is None or bool((p.grad == _OLD).all()) for p in model.parameters()):
            raise Mistake("not-attempted", f"{case}: no backward pass and no step has run yet.")
        raise Mistake("leftover-gradients", f"{case}: gradients are there, and no step has used them.")
    if len(found) > 1:
        raise Mistake("irregular-window", f"{case}: {len(found)} steps; expected one update.")
    if found[0] is None:
        raise Mistake("empty-step", f"{case}: the step found no gradient.")
    _compare(found[0], sums, counts, case, dirty)
    if how := changed(given, calls, "the batches"):
        raise Mistake("changed-input", f"{case}: the update is right, but {how}.")


def _batch(lengths: Sequence[int]) -> Batch:
    inputs, targets = (torch.randint(_CLASSES, (len(lengths), _WIDTH)) for _ in range(2))
    targets[torch.arange(_WIDTH) >= torch.tensor(lengths)[:, None]] = IGNORED
    return inputs, targets


def _gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the sum of a micro-batch's losses."""
    model.zero_grad()
    cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum").backward()
    return _flat(model)


def _flat(model: nn.Module) -> Tensor | None:
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(grads) if grads else None


def _compare(got: Tensor, sums: list[list[Tensor]], counts: list[list[int]], case: str, dirty: bool) -> None:
    """Raises a `Mistake` that names what explains the gradient, unless it is that of one large batch."""
    total, n = sum(map(sum, counts)), len(counts[0])
    want = sum(map(sum, sums)) / total
    if close(got, want):
        return
    if dirty and any(close(got, want + old) for old in (_OLD, _OLD / n)):
        raise Mistake("stale-gradients", f"{case}: the old gradient entered the update. Zero before the first call.")
    if got.isnan().any():
        raise Mistake("nan", f"{case}: the gradient holds NaN.")

    def added(divide: Callable[[int, int], float], scaled: bool) -> Tensor:
        """What is in `.grad` if a micro-batch's sum is divided so, and if each call divides by n at its end."""
        grad = torch.zeros_like(want)
        for call, parts in enumerate(sums):
            for place, part in enumerate(parts):
                grad = grad + part / max(divide(call, place), 1)
            grad = grad / n if scaled else grad
        return grad

    means, own = (lambda c, k: counts[c][k]), (lambda c, k: sum(counts[c]))
    several = len(sums) > 1
    guesses = (
        ("scale-grads", "divides by the tokens and then by the micro-batches once more", lambda c, k: total, True),
        ("own-call", "divides by the tokens of one call, not of all", own, False),
        ("own-call", "divides by the tokens of one call, and then by the micro-batches", own, True),
        ("token-weights", "adds up means of micro-batches", means, True),
        ("token-weights", "adds up means of micro-batches", means, False),
        ("loss-scale", "adds up sums, and divides them by the micro-batches only", lambda c, k: 1, True),
    )
    for bug, how, divide, scaled in guesses:
        guess = added(divide, scaled)
        for times in (1.0, 1.0 / len(sums), 1.0 / n, 1.0 / (n * len(sums))):
            if close(got, guess * times):
                forgets = scaled and several
                bug, how = ("forgotten-calls", "divides earlier calls again at every call") if forgets else (bug, how)
                raise Mistake(bug, f"{case}: the update {how}.")
    ratio = float(got @ want / (want @ want))
    if ratio > 0 and close(got, want * ratio):
        raise Mistake("loss-scale", f"{case}: the update is {rounded([ratio])[0]} times what it should be.")
    raise Mistake("token-weights", f"{case}: some tokens count more than others in the update.")
