"""Answers to "token_weights": how much a window's tokens count under three normalisations."""

import torch

from answers import edited, right, wrong


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
        for index, (row, group) in enumerate(zip(mask, groups.tolist(), strict=True)):
            if row.any():
                divisor = {
                    "token": sum(tokens.values()),
                    "sequence": answers * int(row.sum()),
                    "group": len(tokens) * tokens.get(group, 0),
                }[kind]
                weights[index][row] = 1 / divisor
        yield weights


RETURN = "return [mask / own[:, None] for (mask, _), own in pairs]"
for bug, change in (
    (
        "wrong-value",
        (RETURN, f"return [solution([batch], kind)[0] for batch in window] if window[1:] else {RETURN[7:]}"),
    ),
    ("wrong-value", (RETURN, RETURN.replace("mask /", "mask / len(window) /"))),
    ("wrong-value", ("[mask.sum(1)", "[torch.ones_like(mask).sum(1)")),
    ("wrong-value", (".clamp(min=1)", "")),
    ("wrong-value", (RETURN, "return [mask.amax(1) / own for (mask, _), own in pairs]")),
    ("wrong-value", (RETURN, f"{RETURN}[0].tolist()")),
    ("changed-input", ("    pairs", "    window[0][0].zero_()\n    pairs")),
    ("wrong-value", (RETURN, RETURN.replace("/", "*"))),
):
    wrong("token_weights", bug)(edited("token_weights", change))
