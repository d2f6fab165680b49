"""The exercise of *shards and pipelines*: several calls of a pipeline make one update; each valid token counts once."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercises.bench import Exercise, Seen, changed, edits
from course_utils.exercises.loop import one_rank, require_step

WIDTH, CLASSES = 6, 5
CASES = {  # the valid targets of each sequence, by call; and the micro-batches of a call
    "sequences with 2, 2, 2 and 2 valid targets": ([[2, 2, 2, 2]], 2),
    "sequences with 5, 1, 2 and 6 valid targets": ([[5, 1, 2, 6]], 2),
    "two calls with 12 valid targets each": ([[3, 3, 3, 3], [3, 3, 3, 3]], 2),
    "two calls, with 23 and 5 valid targets": ([[6, 6, 5, 6], [1, 1, 2, 1]], 4),
    "two micro-batches without a valid target": ([[0, 0, 4, 1], [3, 2, 0, 0]], 2),
}


def solution(stage, optimizer, calls, n):
    from torch.distributed.pipelining import Schedule1F1B  # slow to import

    total = sum(int((targets != -100).sum()) for _, targets in calls)

    def loss_fn(scores, targets):
        flat = scores.flatten(0, 1), targets.flatten()
        return F.cross_entropy(*flat, reduction="sum") / total

    schedule = Schedule1F1B(stage, n, loss_fn=loss_fn, scale_grads=False)
    optimizer.zero_grad()
    for inputs, targets in calls:
        schedule.step(inputs, target=targets)
    optimizer.step()


def watch(answer: Callable, case: str) -> Seen:
    from torch.distributed.pipelining import PipelineStage  # slow to import

    model = nn.Sequential(nn.Embedding(CLASSES, 3), nn.Tanh(), nn.Linear(3, CLASSES)).double()
    optimizer, found, arrived = torch.optim.SGD(model.parameters(), lr=0.0), [], []
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)  # left by an earlier backward pass
        p.register_hook(lambda _: arrived.append(1))
    lengths, n = CASES[case]
    calls = [*map(_batch, lengths)]
    optimizer.register_step_pre_hook(lambda *_: found.append(deepcopy([p.grad for p in model.parameters()])))
    given = [(inputs.clone(), targets.clone()) for inputs, targets in calls]
    with one_rank():
        answer(PipelineStage(model, 0, 1, torch.device("cpu")), optimizer, given, n)
    require_step(found, arrived, case)
    whole = None if None in found[0] else torch.cat([grad.flatten() for grad in found[0]])
    return {"steps": len(found), "update": whole, "input": changed(given, calls)}


def _batch(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    inputs, targets = (torch.randint(CLASSES, (len(lengths), WIDTH)) for _ in range(2))
    return inputs, targets.where(torch.arange(WIDTH) < torch.tensor(lengths)[:, None], -100)


SCHEDULE = "schedule = Schedule1F1B(stage, n, loss_fn=loss_fn, scale_grads=False)"
SCALED = SCHEDULE.replace("False", "True")
MEAN = "loss_fn = lambda scores, targets: F.cross_entropy(scores.flatten(0, 1), targets.flatten())\n"
FIRST = "for inputs, targets in calls:"
PIPELINE_UPDATE = Exercise(
    "pipeline_update",
    "shards_and_pipelines",
    watch,
    solution,
    cases=[*CASES],
    edits=[
        *edits("scale-grads", SCHEDULE, SCALED),
        *edits("stale-gradients", "optimizer.zero_grad()", ""),
        *edits("forgotten-calls", SCHEDULE, f"total /= n\n{SCALED}"),
        *edits("own-call", FIRST, f"{FIRST}\n    total = int((targets != -100).sum())"),
        *edits("token-weights", SCHEDULE, MEAN + SCALED, MEAN + SCHEDULE),
        *edits("loss-scale", SCHEDULE, f"total = 1\n{SCALED}"),
    ],
    channels={"steps": "irregular-window"},
)
