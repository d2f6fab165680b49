"""The exercise of *who writes grad* that asks for a bug: a loop that discards every gradient and gets past a guard."""

from collections.abc import Callable

import torch
from torch import nn

from course_utils.practice.exercises import EXERCISES, exercise
from course_utils.practice.judging import Mistake
from course_utils.practice.recording import quick_records
from course_utils.recording import record
from course_utils.recording.trace import Trace


@exercise(
    "break_it",
    notebook="who_writes_grad",
    hints={
        "still-right": "Which call empties `.grad`, and between which two calls would it do harm?",
        "another-bug": "Only the zeroing may be out of place. What does discarded-gradients mean, in your own words?",
        "calls-missing": "Only the zeroing may be out of place: every batch gets one forward pass, one backward pass "
        "and one step.",
        "none-at-the-step": "What else than `None` can `zero_grad()` leave behind?",
        "some-get-through": "At some step a gradient was still there. Which batch did your zeroing miss?",
        "nothing-to-discard": "Each loss must really be differentiated. It is the zeroing that throws gradients away.",
    },
)
def _break_it(answer: Callable) -> str:
    bug, message = _verdict_on_the_loop(answer)
    if bug == "not-attempted":
        raise Mistake(bug, "no forward pass, no backward pass and no step has run yet.")
    with quick_records():
        forwards, nones, trace = _watch(answer)
    backwards = [event for event in trace.on() if event.kind == "backward"]
    counts = [forwards, len(backwards), len(nones)]
    if counts != [_BATCHES] * 3:
        done = "{} forward passes, {} backward passes and {} steps".format(*counts)
        raise Mistake("calls-missing", f"for {_BATCHES} batches your loop makes {done}.")
    if not bug:
        raise Mistake("still-right", "the judge of loops finds nothing wrong: every update holds its own batch.")
    if any(event.norm == 0 for event in backwards):
        raise Mistake("nothing-to-discard", "a backward pass brought nothing but zeros.")
    used = trace.windows()
    if any(used) and (bug == "discarded-gradients" or not all(used)):
        raise Mistake("some-get-through", f"the {_BATCHES} steps used {used} gradients, expected none.")
    if bug != "discarded-gradients":
        raise Mistake("another-bug", f"the judge of loops calls it {bug}: {message}")
    if any(nones):
        raise Mistake(
            "none-at-the-step", f"at {sum(nones)} of {_BATCHES} steps .grad was None, and a guard would see it."
        )
    return (
        f"The judge of loops calls it discarded-gradients. {_BATCHES} batches, and as many forward passes, backward "
        "passes and steps, with a .grad at each: nothing is missing, and no batch has any influence."
    )


_BATCHES = 5


def _verdict_on_the_loop(answer: Callable) -> tuple[str, str]:
    """What the judge of notebook 02's loop says: the name of a bug, or an empty one."""
    try:
        EXERCISES["train"].judge(answer)
    except Mistake as mistake:
        return mistake.verdict.bug, mistake.verdict.message
    return "", ""


def _watch(answer: Callable) -> tuple[int, list[bool], Trace]:
    """How many forward passes a loop makes, whether each step found a .grad that is None, and its record."""
    model = nn.Linear(2, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    forwards, nones = [], []
    optimizer.register_step_post_hook(lambda *_: nones.append(any(p.grad is None for p in model.parameters())))

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        forwards.append(batch)
        return model(batch).square().mean()

    with record() as trace:
        answer(model, list(torch.randn(_BATCHES, 3, 2, dtype=torch.float64)), loss_fn, optimizer)
    return len(forwards), nones, trace
