"""Answers to "token_weights": how much every token of a window counts under three normalisations."""

import torch

from answers import edited, right, wrong
from solutions import solution

token_weights = solution("token_weights")


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


@wrong("token_weights", "own-micro-batch")  # allenai/open-instruct!1161
def a_mean_of_each_micro_batch_over_n(window, kind):
    return [token_weights([batch], kind)[0] / len(window) for batch in window]


RESULT = "[mask / own[:, None] for (mask, _), own in pairs]"
for bug, *changes in (
    ("by-n", (RESULT, "[mask / own[:, None] / len(window) for (mask, _), own in pairs]")),
    ("empty-answer", ("lengths > 0", "lengths >= 0")),  # radixark/miles!2796
    ("masked-positions", ("mask / own", "torch.ones(mask.shape) / own")),
    ("nan", (".clamp(min=1)", "")),
    ("wrong-length", (RESULT, "[mask.amax(1) / own for (mask, _), own in pairs]")),
    ("wrong-type", (RESULT, f"[own.tolist() for own in {RESULT}]")),
    ("changed-input", (f"return {RESULT}", f"found = {RESULT}\n    window[0][0].zero_()\n    return found")),
):
    wrong("token_weights", bug)(edited("token_weights", *changes))
