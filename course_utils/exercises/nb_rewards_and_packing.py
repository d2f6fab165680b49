"""The exercise of *rewards and packing*: a token's weight under three published normalisations."""

from itertools import product

import torch
from torch import Tensor

from course_utils.exercises.judging import CHANGED_INPUT, changed, exercise, read_all, returned, same, wrong_type

OTHER = "wrong-value", "", "Which tokens does the formula count? Those of the whole window, without padding: Step 2."


def made(seed):
    """A window of micro-batches: which positions of each answer count, and its group."""
    random = torch.Generator().manual_seed(seed)
    often = (1.0, 0.6, 0.3, 0.0)[seed % 4]
    for answers in (2, 4, 1, 3):
        mask = torch.rand(answers, 3 + answers, generator=random) < often
        yield mask, torch.randint(3, (answers,), generator=random)


def weights(window, kind):
    lengths = torch.cat([mask.sum(1) for mask, _ in window])
    groups = torch.cat([groups for _, groups in window])
    divisors = {
        "token": lengths.sum().expand_as(lengths),
        "sequence": (lengths > 0).sum() * lengths,
        "group": len(groups[lengths > 0].unique()) * ((groups[:, None] == groups) * lengths).sum(1),
    }[kind].clamp(min=1)
    pairs = zip(window, divisors.split([len(mask) for mask, _ in window]), strict=True)
    return [mask / own[:, None].double() for (mask, _), own in pairs]


@exercise
def token_weights(answer):
    for seed, kind in product(range(12), ("token", "sequence", "group")):
        case, given, window = f"{kind!r}, window {seed + 1}", [*made(seed)], [*made(seed)]
        got = returned(read_all(answer(given, kind), at_most=100), "a list of tensors")
        if not isinstance(got, list | tuple) or not all(isinstance(entry, Tensor) for entry in got):
            raise wrong_type(f"{case}: expected a list with a tensor for each micro-batch, got {got!r}.")
        same("input", changed(given, window), "", CHANGED_INPUT)
        same(f"{case}: how much a token counts", got, weights(window, kind), OTHER)
    return "ragged windows, groups that are cut, masked prompts and answers: every token counts as in one large batch."
