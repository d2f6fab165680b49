"""The exercise of *who divides*: the factor of a sum of losses on a grid of ranks."""

import torch

from course_utils.exercises.judging import Mistake, exercise, number, same, unchanged

HINT = "Follow one token on paper: which ranks hold it, and by what is its loss divided before the step?"
GRIDS = (((6, 1), (2, 3)), 1, 4), (((5, 0), (2, 1)), 2, 1), (((3,), (1,), (4,)), 4, 3), (((7,),), 2, 2)


@exercise("Ragged data and context ranks, tensor ranks, n = 1 to 4: each token counts 1 / T.")
def loss_factor(answer):
    for held, tensor, n in GRIDS:
        counts = torch.tensor(held)[:, :, None].repeat(1, 1, tensor)
        data, context, total = *counts.shape[:2], sum(map(sum, held))
        right, given = n * data * context / total, counts.clone()
        case = f"{data} data x {context} context x {tensor} tensor ranks, n = {n}, counts[:, :, 0] = {list(held)}"
        got = number(answer(given, n))
        named = {
            "tensor-ranks-count-twice": right / tensor,
            "averages-over-tensor-ranks": right * tensor,
            "leaves-n-out": right / n,
            "leaves-context-out": right / context,
        }
        for bug, value in named.items():
            if abs(got - value) < 1e-9 < abs(value - right):
                raise Mistake(bug, f"{case}: a token counts {got / right:g} times 1 / T.", HINT)
        same(f"{case}: the factor", got, right, hint=HINT)
        unchanged(given, counts)
