"""The exercise of *memory* on paper: how many bytes a window holds."""

from collections.abc import Iterator

import torch
from torch import nn

from course_utils.memory import held_bytes, saved_bytes
from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

ROWS, N = 64, 8
_INPUTS, _HIDDEN, _OUTPUTS = 100, 200, 10
_PER_ROW = _INPUTS + _HIDDEN + _OUTPUTS
_FIRST, _SECOND = _INPUTS * _HIDDEN, _HIDDEN * _OUTPUTS

GRADIENTS = "gradients"
ACTIVATIONS = "activations, N = 8"
BOTH = "gradients and arriving, N = 8"
AUTOCAST = "activations under autocast, N = 8"


@torch.enable_grad()
def measured() -> dict[str, int]:
    """What the model on paper holds, counted while it trains."""
    layers = nn.Linear(_INPUTS, _HIDDEN, bias=False), nn.Tanh(), nn.Linear(_HIDDEN, _OUTPUTS, bias=False)
    model = nn.Sequential(*layers).float()
    micro_batches = torch.ones(ROWS, _INPUTS, dtype=torch.float32).chunk(N)
    with saved_bytes(model) as saved:
        for x in micro_batches:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
    model.zero_grad()
    with held_bytes(model) as held:
        for x in micro_batches:
            model(x).square().mean().backward()
    return {
        GRADIENTS: held.most("gradients"),
        ACTIVATIONS: held.most("activations"),
        BOTH: held.most("gradients", "arriving"),
        AUTOCAST: saved.peak,
    }


def _slips() -> Iterator[Slip]:
    right, rows = measured(), ROWS // N
    of_rows = rows * _PER_ROW * 2  # under autocast
    yield Slip("counts-numbers", "these are numbers, not bytes", {
        GRADIENTS: _FIRST + _SECOND, ACTIVATIONS: rows * _PER_ROW, BOTH: 2 * _FIRST + _SECOND,
        AUTOCAST: rows * _PER_ROW + _SECOND,
    })  # fmt: skip
    yield Slip("whole-batch", "that is what all 64 rows hold", {
        ACTIVATIONS: N * right[ACTIVATIONS], AUTOCAST: N * of_rows + 2 * _SECOND,
    })  # fmt: skip
    yield Slip("one-gradient", "a new gradient stands beside .grad for a moment", {BOTH: right[GRADIENTS]})
    yield Slip("all-at-once", "gradients arrive one after the other", {BOTH: 2 * right[GRADIENTS]})
    yield Slip("the-smaller-one", "which parameter's gradient is the largest", {BOTH: right[GRADIENTS] + 4 * _SECOND})
    yield Slip("copies-divided", "the copies of the weights do not depend on the rows", {
        AUTOCAST: of_rows + 2 * _SECOND // N,
    })  # fmt: skip
    yield Slip("copies-forgotten", "a forward pass also saves a copy of weights", {AUTOCAST: of_rows})
    yield Slip("copies-of-all", "x needs no gradient, so backward does not need the first layer's weights", {
        AUTOCAST: of_rows + 2 * (_FIRST + _SECOND),
    })  # fmt: skip
    yield Slip("copies-too-wide", "a number in bfloat16 takes 2 bytes", {AUTOCAST: of_rows + 4 * _SECOND})
    twice = rows * (_PER_ROW + _HIDDEN)
    yield Slip("counts-twice", "tanh's result is also the second layer's input: one piece of memory", {
        ACTIVATIONS: 4 * twice, AUTOCAST: 2 * twice + 2 * _SECOND,
    })  # fmt: skip
    less = rows * (_PER_ROW - _OUTPUTS)
    yield Slip("forgets-the-output", "square saves its input, too", {
        ACTIVATIONS: 4 * less, AUTOCAST: 2 * less + 2 * _SECOND,
    })  # fmt: skip


@exercise(
    "bytes_on_paper",
    notebook="memory",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank.",
        "counts-numbers": "How many bytes does a number in float32 take, and one in bfloat16?",
        "whole-batch": "How many rows does one micro-batch have, and when are its activations freed?",
        "one-gradient": "Step 2: from the second micro-batch on, what does an arriving gradient find in `.grad`?",
        "all-at-once": "Step 2: when has an arriving gradient been added, and when does the next one arrive?",
        "the-smaller-one": "The peak is at the worst moment. Which of the two gradients makes it?",
        "copies-divided": "Step 1: what does a forward pass compute from the weights alone?",
        "copies-forgotten": "Step 1: which weights does the backward pass need, and in which type?",
        "copies-of-all": "In backward, what is a layer's weight multiplied by, and does anything need the result?",
        "copies-too-wide": "In which type does autocast make its copies?",
        "counts-twice": "Follow one tensor from `tanh` into the second layer. Is it copied?",
        "forgets-the-output": "What does the derivative of a square need?",
        "wrong-value": "Write down what each operation saves for one row, then multiply.",
    },
)
def _bytes_on_paper(answer: dict) -> str:
    judge_numbers(answer, measured(), _slips())
    return "these are the bytes that `held_bytes` and `saved_bytes` count while this model trains."
