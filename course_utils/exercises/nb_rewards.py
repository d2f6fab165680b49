"""The exercise of *rewards*: a token's weight under three published normalisations."""

from itertools import product

import torch

from course_utils.exercises.judging import exercise, returned, same, unchanged

HINT = "Which tokens does the formula count? Those of the whole window, without padding: Step 2."


def made(seed):
    """A window of micro-batches: which positions of each answer count, and its group."""
    torch.default_generator.manual_seed(seed)
    often = (1.0, 0.6, 0.3, 0.0)[seed % 4]
    return [(torch.rand(many, 3 + many) < often, torch.randint(3, (many,))) for many in (2, 4, 1, 3)]


def weights(window, kind):
    masks, groups = zip(*window, strict=True)
    lengths, groups = torch.cat([mask.sum(1) for mask in masks]), torch.cat(groups)
    divisors = {
        "token": lengths.sum().expand_as(lengths),
        "sequence": (lengths > 0).sum() * lengths,
        "group": len(groups[lengths > 0].unique()) * ((groups[:, None] == groups) * lengths).sum(1),
    }[kind].clamp(min=1)
    parts = divisors.split([len(mask) for mask in masks])
    return [mask / own[:, None].double() for mask, own in zip(masks, parts, strict=True)]


@exercise("ragged windows, groups that are cut, masked prompts and answers: every token counts as in one large batch.")
def token_weights(answer):
    for seed, kind in product(range(12), ("token", "sequence", "group")):
        window = made(seed)
        got = returned(answer(window, kind), "a list of tensors")
        unchanged(window, made(seed))
        same(f"{kind!r}, window {seed + 1}: how much a token counts", got, weights(window, kind), hint=HINT)
