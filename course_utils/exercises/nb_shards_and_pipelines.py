"""The exercise of *shards and pipelines*: several calls of a pipeline make one update; each valid token counts once."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.exercises.judging import CHANGED_INPUT, changed, exercise, same
from course_utils.exercises.loop import one_rank, require_step

WIDTH, CLASSES = 6, 5
CASES = {  # the valid targets of each sequence, by call; and the micro-batches of a call
    "sequences with 2, 2, 2 and 2 valid targets": ([[2, 2, 2, 2]], 2),
    "sequences with 5, 1, 2 and 6 valid targets": ([[5, 1, 2, 6]], 2),
    "two calls with 12 valid targets each": ([[3, 3, 3, 3], [3, 3, 3, 3]], 2),
    "two calls, with 23 and 5 valid targets": ([[6, 6, 5, 6], [1, 1, 2, 1]], 4),
    "two micro-batches without a valid target": ([[0, 0, 4, 1], [3, 2, 0, 0]], 2),
}
STEPS = "irregular-window", "all calls make one update together", "How often does your optimizer step?"
OTHER = "wrong-value", "", "Follow one token: what divides its loss in your function, and what divides after it?"


def batch_of(lengths):
    inputs, targets = (torch.randint(CLASSES, (len(lengths), WIDTH)) for _ in range(2))
    return inputs, targets.where(torch.arange(WIDTH) < torch.tensor(lengths)[:, None], -100)


def gradients_at_steps(answer, case, model, calls, n):
    from torch.distributed.pipelining import PipelineStage  # slow to import

    parameters, found, arrived = [*model.parameters()], [], []
    for p in parameters:
        p.grad = torch.full_like(p, 7.0)  # left by an earlier backward pass
        p.register_hook(arrived.append)
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: found.append(deepcopy([p.grad for p in parameters])))
    with one_rank():
        answer(PipelineStage(model, 0, 1, torch.device("cpu")), optimizer, calls, n)
    require_step(found, arrived, case)
    return found


@exercise
def pipeline_update(answer):
    for case, (lengths, n) in CASES.items():
        torch.default_generator.manual_seed(1)
        model = nn.Sequential(nn.Embedding(CLASSES, 3), nn.Tanh(), nn.Linear(3, CLASSES)).double()
        calls = [*map(batch_of, lengths)]
        given, tokens = deepcopy(calls), sum(map(sum, lengths))
        losses = [cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in calls]
        right = [*torch.autograd.grad(sum(losses) / tokens, [*model.parameters()])]
        found = gradients_at_steps(answer, case, model, given, n)
        same(f"{case}: steps", len(found), 1, STEPS)
        same(f"{case}: the gradient", found[0], right, OTHER, wrong=[
            ("stale-gradients", [each + 7.0 for each in right], "", "When do you zero? Look before the first call."),
            ("scale-grads", [each / n for each in right], "", "The loss has divided by all tokens. What divides then?"),
        ])  # fmt: skip
        same("input", changed(given, calls), "", CHANGED_INPUT)
    return (
        "one call and two, equal sequences and ragged ones, micro-batches without a valid target, old gradients: one "
        "update each, and every valid target counts as in the large batch."
    )
