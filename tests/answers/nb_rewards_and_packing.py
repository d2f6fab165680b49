"""Answers to "token_weights": how much every token of a window counts under three normalisations."""

from functools import partial

import torch

from answers import right
from answers import wrong as _wrong

wrong = partial(_wrong, "token_weights")


@right("token_weights")
def token_weights(window, kind):
    lengths = torch.cat([mask.sum(1) for mask, _ in window])
    groups = torch.cat([groups for _, groups in window])
    some = lengths > 0
    if kind == "token":
        divisors = lengths.sum().expand_as(lengths)
    elif kind == "sequence":
        divisors = some.sum() * lengths
    else:
        same = groups[:, None] == groups
        divisors = len(groups[some].unique()) * (same * lengths).sum(1)
    each = divisors.clamp(min=1).split([len(mask) for mask, _ in window])
    return [mask / own[:, None] for (mask, _), own in zip(window, each, strict=True)]


@right("token_weights")
def counts_with_dictionaries(window, kind):
    tokens, answers = {}, 0
    for mask, groups in window:
        for row, group in zip(mask, groups.tolist(), strict=True):
            if row.any():
                tokens[group] = tokens.get(group, 0) + int(row.sum())
                answers += 1
    for mask, groups in window:
        weights = torch.zeros(mask.shape)
        for place, (row, group) in enumerate(zip(mask, groups.tolist(), strict=True)):
            if row.any():
                divisor = {
                    "token": sum(tokens.values()),
                    "sequence": answers * int(row.sum()),
                    "group": len(tokens) * tokens.get(group, 0),
                }[kind]
                weights[place][row] = 1 / divisor
        yield weights


def alone(window, kind):
    return [token_weights([batch], kind)[0] for batch in window]


@wrong("own-micro-batch", "allenai/open-instruct!1161")
def a_mean_of_each_micro_batch_over_n(window, kind):
    return [own / len(window) for own in alone(window, kind)]


@wrong("own-micro-batch")
def a_mean_of_each_micro_batch(window, kind):
    return alone(window, kind)


@wrong("by-n")
def divides_by_n_as_well(window, kind):
    return [own / len(window) for own in token_weights(window, kind)]


@wrong("empty-answer", "radixark/miles!2796")
def counts_answers_that_are_masked_out(window, kind):
    if kind != "sequence":
        return token_weights(window, kind)
    answers = sum(len(mask) for mask, _ in window)
    return [mask / (answers * mask.sum(1, keepdim=True)).clamp(min=1) for mask, _ in window]


@wrong("padding")
def counts_positions(window, kind):
    if kind != "token":
        return token_weights(window, kind)
    total = sum(mask.numel() for mask, _ in window)
    return [mask / total for mask, _ in window]


@wrong("masked-positions")
def gives_padding_a_weight(window, kind):
    return [own.amax(1, keepdim=True).expand_as(own) for own in token_weights(window, kind)]


@wrong("split-groups")
def counts_the_parts_of_a_group(window, kind):
    if kind != "group":
        return token_weights(window, kind)
    groups = len(torch.cat([groups[mask.any(1)] for mask, groups in window]).unique())
    weights = []
    for mask, own in window:
        tokens = ((own[:, None] == own) * mask.sum(1)).sum(1, keepdim=True)
        weights.append(mask / (groups * tokens).clamp(min=1))
    return weights


@wrong("other-kind")
def knows_one_kind(window, kind):
    return token_weights(window, "token")


@wrong("inverted")
def returns_divisors(window, kind):
    return [torch.where(own > 0, 1 / own, 0.0) for own in token_weights(window, kind)]


@wrong("nan")
def divides_nothing_by_nothing(window, kind):
    if kind != "sequence":
        return token_weights(window, kind)
    answers = sum(int(mask.any(1).sum()) for mask, _ in window)
    return [mask / (answers * mask.sum(1, keepdim=True)) for mask, _ in window]


@wrong("changed-input")
def empties_the_masks(window, kind):
    weights = token_weights(window, kind)
    for mask, _ in window:
        mask.zero_()
    return weights


@wrong("wrong-length")
def one_weight_per_answer(window, kind):
    return [own.amax(1) for own in token_weights(window, kind)]


@wrong("wrong-length")
def one_large_batch(window, kind):
    return [torch.cat([own.flatten() for own in token_weights(window, kind)])]


@wrong("wrong-type")
def returns_lists(window, kind):
    return [own.tolist() for own in token_weights(window, kind)]


@wrong("not-attempted")
def returns_nothing(window, kind):
    token_weights(window, kind)
