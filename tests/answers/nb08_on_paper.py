"""Answers to "schedule_on_paper": learning rates under a schedule, and what each slip leads to."""

import torch

from answers import right, wrong


def on_paper(updates=9, per_update=1 / 4, per_micro_batch=1 / 8, per_epoch=1):
    return {
        "number of updates": updates,
        "update 9 if stepped per update": per_update,
        "update 3 if stepped per micro-batch": per_micro_batch,
        "update 9 if stepped per epoch": per_epoch,
    }


for correct in (
    on_paper(),
    on_paper(9.0, torch.tensor(0.25), "0.125", 1.0),
    on_paper(3 * 3, 0.5 ** (8 // 3), 0.5 ** (10 // 3), 0.5 ** (2 // 3)),
    dict(reversed(on_paper().items())),
):
    right("schedule_on_paper")(correct)

for slip, bug, says in (
    (on_paper(updates=30), "counts-micro-batches", "number of updates = 30"),
    (on_paper(updates=30, per_update=0.5**9), "counts-micro-batches", ""),
    (on_paper(updates=6), "loses-the-tail", "short"),
    (on_paper(updates=6, per_update=1 / 2, per_micro_batch=1 / 16), "loses-the-tail", ""),
    (on_paper(updates=8), "spans-epochs", "two epochs"),
    (on_paper(per_update=1 / 8), "off-by-one", "before it"),
    (on_paper(per_epoch=1 / 2), "off-by-one", ""),
    (on_paper(per_micro_batch=1), "counts-updates", "every micro-batch"),
    (on_paper(per_micro_batch=1 / 2), "counts-updates", ""),
    (on_paper(per_micro_batch=1 / 4), "a-window-behind", "own micro-batches"),
    (on_paper(per_update=1), "not-halved-yet", "how often"),
    (on_paper(per_update=3), "wrong-value", "update 9 if stepped per update = 3"),
    (on_paper(per_epoch=...), "unfinished", "stepped per epoch"),
    (on_paper(..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"updates": 9}, "wrong-type", "no blank 'updates'"),
    ([9, 1 / 4], "wrong-type", "expected a dict"),
):
    wrong("schedule_on_paper", bug, says=says)(slip)
