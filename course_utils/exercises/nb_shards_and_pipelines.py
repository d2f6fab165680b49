"""The exercise of *shards and pipelines*: several calls of a pipeline make one update."""

import torch
from torch.nn.functional import cross_entropy, pad

from course_utils.exercises.judging import compare, exercise
from course_utils.exercises.loop import Case, Loop, one_rank
from course_utils.exercises.nb06_tokens import Words, target_of

# For each update the valid targets of sequences, of which four make a call.
CASES = [Case((5, 1, 2, 6), (6, 6, 5, 6, 1, 1, 2, 1)), Case((0, 0, 4, 1, 3, 2, 0, 0), old_gradient=True)]


class Calls(Loop):
    def batches(self, samples):
        inputs = torch.stack([pad(tokens + 1, (0, 6 - len(tokens))) for tokens in samples])
        targets = target_of(inputs).where(inputs > 0, -100)
        return [*zip(inputs.split(4), targets.split(4), strict=True)]


def solution(stage, optimizer, calls, n):
    inputs, targets = map(torch.cat, zip(*calls, strict=True))
    optimizer.zero_grad()
    cross_entropy(stage.submod(inputs).flatten(0, 1), targets.flatten()).backward()
    optimizer.step()


def watch(answer, case):
    from torch.distributed.pipelining import PipelineStage  # slow to import

    loop = Calls(case, Words)

    def call(calls):
        with one_rank():
            stage = PipelineStage(loop.model, 0, 1, torch.device("cpu"))
            answer(stage, loop.optimizer, calls, 2 * len(calls))

    return loop.run(call)


@exercise("one call and two, ragged sequences, old gradients: one update each, and every valid target counts the same.")
def pipeline_update(answer):
    compare(watch, answer, solution, CASES)
