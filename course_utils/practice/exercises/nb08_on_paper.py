"""The exercise of notebook 08 on paper: how many updates there are, and which learning rate each of them uses."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from course_utils.loops import windows
from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

EPOCHS, MICRO_BATCHES, N = 3, 10, 4

UPDATES = "number of updates"
PER_UPDATE = "update 9 if stepped per update"
PER_MICRO_BATCH = "update 3 if stepped per micro-batch"
PER_EPOCH = "update 9 if stepped per epoch"


def used(stepped: str) -> list[float]:
    """The learning rates of all updates, from a loop that steps the schedule once per "update", "micro-batch" or
    "epoch".
    """
    w = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([w], lr=1.0)
    schedule, learning_rates = StepLR(optimizer, step_size=3, gamma=0.5), []
    optimizer.step()  # without a gradient: it keeps the schedule from warning
    for _ in range(EPOCHS):
        for window in windows(range(MICRO_BATCHES), N):
            for _ in window:
                if stepped == "micro-batch":
                    schedule.step()
            learning_rates.append(optimizer.param_groups[0]["lr"])
            if stepped == "update":
                schedule.step()
        if stepped == "epoch":
            schedule.step()
    return learning_rates


def measured() -> dict[str, float]:
    """What is correct for each blank."""
    per_update = used("update")
    return {
        UPDATES: len(per_update),
        PER_UPDATE: per_update[8],
        PER_MICRO_BATCH: used("micro-batch")[2],
        PER_EPOCH: used("epoch")[8],
    }


def _after(scheduler_steps: int) -> float:
    return 0.5 ** (scheduler_steps // 3)


def _slips() -> Iterator[Slip]:
    yield Slip("counts-micro-batches", "that counts micro-batches", {
        UPDATES: EPOCHS * MICRO_BATCHES, PER_UPDATE: _after(29),
    })  # fmt: skip
    yield Slip("loses-the-tail", "an epoch's last window is short, and an update all the same", {
        UPDATES: EPOCHS * (MICRO_BATCHES // N), PER_UPDATE: _after(5), PER_MICRO_BATCH: _after(3 * N),
    })  # fmt: skip
    yield Slip("spans-epochs", "a window never spans two epochs", {UPDATES: -(-EPOCHS * MICRO_BATCHES // N)})
    yield Slip("off-by-one", "an update uses what the scheduler steps before it have left", {
        PER_UPDATE: _after(9), PER_EPOCH: _after(3),
    })  # fmt: skip
    yield Slip("counts-updates", "here every micro-batch is a scheduler step", {
        PER_MICRO_BATCH: lambda got: got in (_after(2), _after(3)),
    })  # fmt: skip
    yield Slip("a-window-behind", "this window's own micro-batches come before its update", {
        PER_MICRO_BATCH: _after(2 * N),
    })  # fmt: skip
    yield Slip("not-halved-yet", "how often has it been halved by then", {PER_UPDATE: 1.0, PER_MICRO_BATCH: 1.0})


@exercise(
    "schedule_on_paper",
    notebook="08_training_loop",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank.",
        "counts-micro-batches": "Into how many windows do ten micro-batches fall?",
        "loses-the-tail": "Ten micro-batches in windows of 4: how long is each window, down to the last?",
        "spans-epochs": "Which micro-batches are in the third window of an epoch?",
        "off-by-one": "Write down the learning rate of updates 1 to 4 first. Which one is the first to be halved?",
        "counts-updates": "How many micro-batches have run when update 3 comes?",
        "a-window-behind": "In the loop over a window, what runs before `optimizer.step()`?",
        "not-halved-yet": "`step_size=3`: after how many scheduler steps is it halved for the second time?",
        "wrong-value": "Count the scheduler steps before the update, divide by 3 and round down.",
    },
)
def _schedule_on_paper(answer: dict) -> str:
    judge_numbers(answer, measured(), _slips())
    return "a loop that steps this schedule in these places uses the same learning rates."
