"""The exercise of *hooks* on paper: how often each hook runs, and what it finds."""

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

WINDOWS, N, PIECE, CALL = 5, 4, 2, 7

_ALL = WINDOWS * N
WANT = {"tensor": _ALL + WINDOWS, "post": _ALL, "step": WINDOWS, "seventh": (CALL - N) * PIECE}

SLIPS = (
    Slip("forgets-the-log", "the logged norm differentiates with respect to `w`, too", {"tensor": _ALL}),
    Slip(
        "counts-penalties",
        "a penalty's own gradient is that of `x`",
        {"tensor": 2 * _ALL + WINDOWS, "post": 2 * _ALL},
    ),
    Slip("counts-penalties", "a penalty's own gradient is that of `x`", {"tensor": 2 * _ALL}),
    Slip("nothing-added", "`autograd.grad` adds nothing to `.grad`", {"post": _ALL + WINDOWS}),
    Slip("nothing-added", "`autograd.grad` adds nothing to `.grad`", {"post": 2 * _ALL + WINDOWS}),
    Slip("once-per-window", "hooks on a weight run in every backward pass", {"tensor": WINDOWS, "post": WINDOWS}),
    Slip("once-per-window", "hooks on a weight run in every backward pass", {"tensor": 2 * WINDOWS}),
    Slip("per-micro-batch", "a step hook runs when `step()` is called", {"step": _ALL}),
    Slip("never-zeroed", "each update is followed by zeroing", {"seventh": CALL * PIECE}),
    Slip("sees-the-piece", "that is the piece; the hook runs after the addition", {"seventh": PIECE}),
    Slip("before-the-addition", "the hook runs after the addition", {"seventh": (CALL - N - 1) * PIECE}),
    Slip("whole-window", "the window isn't complete yet at that call", {"seventh": N * PIECE}),
)


@exercise(
    "hooks_on_paper",
    notebook="hooks",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank with a number.",
        "forgets-the-log": "Which of the calls in the text compute a gradient of `w`? Count them all.",
        "counts-penalties": "Look at the row `grad of x` in Step 4.",
        "nothing-added": "When does a post-accumulate hook run: when a gradient is computed, or when it is added?",
        "once-per-window": "Count the backward passes first.",
        "per-micro-batch": "How often does training call `step()`?",
        "never-zeroed": "In which window is the 7th call, and which micro-batch of it is that?",
        "sees-the-piece": "What is in `.grad` already when this piece arrives?",
        "before-the-addition": "Is this the tensor hook or the other one?",
        "whole-window": "In which window is the 7th call, and which micro-batch of it is that?",
        "wrong-value": "List the calls that compute a gradient in one window, and what each is a gradient of.",
    },
)
def _hooks_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, SLIPS)
    return "20 backward passes and 5 logged norms, 20 additions, 5 steps, and three pieces of 2 at the 7th call."
