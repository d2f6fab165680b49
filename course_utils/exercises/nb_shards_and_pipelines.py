"""The exercise of *shards and pipelines*: several calls of a pipeline make one update."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.exercises.judging import CHANGED_INPUT, changed, exercise, same
from course_utils.exercises.loop import one_rank, require_step

CASES = (
    [[5, 1, 2, 6]],
    [[6, 6, 5, 6], [1, 1, 2, 1]],
    [[0, 0, 4, 1], [3, 2, 0, 0]],
)  # valid targets of sequences, by call
HINT = "How often do you zero and step? Follow one token: by what is its loss divided, and its gradient after it?"


@exercise
def pipeline_update(answer):
    from torch.distributed.pipelining import PipelineStage  # slow to import

    model, found, arrived = nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 5)), [], []
    weights = [*model.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: found.append(deepcopy([p.grad for p in weights])))
    for case in CASES:
        inputs, targets = torch.randint(5, (2, len(case), 4, 6))
        targets[torch.arange(6) >= torch.tensor(case)[..., None]] = -100
        mean = cross_entropy(model(inputs).flatten(0, 2), targets.flatten())
        right = [*torch.autograd.grad(mean, weights)]
        for p in weights:
            p.grad = torch.full_like(p, 7.0)  # left by an earlier backward pass
            p.register_hook(arrived.append)
        calls = [*zip(inputs, targets, strict=True)]
        given = deepcopy(calls)
        found.clear()
        with one_rank():
            answer(PipelineStage(model, 0, 1, torch.device("cpu")), optimizer, given, 2 * len(calls))
        require_step(found, arrived)
        same(f"steps, with {case} valid targets", len(found), 1, ("irregular-window", "", HINT))
        same(f"the gradient, with {case} valid targets", found[0], right, ("wrong-value", "", HINT))
        same("input", changed(given, calls), "", CHANGED_INPUT)
    return "one call and two, ragged sequences, old gradients: one update each, and every valid target counts the same."
