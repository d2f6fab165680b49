"""The exercise of *how the auditor knows*: the zoo's loops grade the learner's checker."""

import gc
from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, optimizer

from course_utils.exercises.judging import Mistake, exercise, truth

HINTS = {  # by the rule of a loop that a checker misses
    "stale-gradients": "What do the counts show if a gradient is used twice? Look at each optimizer.",
    "discarded-gradients": "Compare how many gradients arrived with how many the steps used.",
    "leftover-gradients": "What is still in `.grad` when the loop has ended, or an epoch has?",
}
NOT_COUNTED = {"local-model-never-zeroed", "update-by-hand-never-zeroed", "gradients-in-one-buffer"}
FALSE_ALARM = "A short last window is no bug. What is true of every correct loop, whatever its windows?"
CALLS = [  # what a checker may replace while a loop runs
    *((torch.Tensor, "backward"), (torch.autograd, "backward"), (nn.Module, "zero_grad"), (nn.Module, "__call__")),
    *((Optimizer, "zero_grad"), (SGD, "step"), (AdamW, "step")),
]
HOOKS = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks


@exercise
def write_the_test(answer):
    """Shows a checker buggy loops, each with its fixed twin.

    A checker gets a function without arguments or name that runs a loop, and returns whether the
    loop is buggy.
    """
    from course_utils.zoo import ZOO

    loops = [specimen for specimen in ZOO.values() if specimen.rule in HINTS and specimen.name not in NOT_COUNTED]
    gc.freeze()  # record() looks through all objects, which needs a second for a whole session
    try:
        missed = [specimen for specimen in loops if not says(answer, specimen.buggy)]
        accused = [specimen for specimen in loops if says(answer, specimen.fixed)]
    finally:
        gc.unfreeze()
    for wrong, what in ((missed, "misses"), (accused, "accuses the fixed twins of")):
        if wrong:
            bug = f"misses-{wrong[0].rule}" if wrong is missed else "false-alarm"
            names = ", ".join(specimen.name for specimen in wrong)
            about = f'What the buggy {wrong[0].name} does: "{wrong[0].what}" ({wrong[0].source})'
            message = f"your checker {what} {len(wrong)} of {len(loops)} buggy loops ({names}). {about}"
            raise Mistake(bug, message, HINTS[wrong[0].rule] if wrong is missed else FALSE_ALARM)
    return f"your checker finds each of {len(loops)} public bugs of three kinds, and accuses none of the fixed loops."


def says(checker, loop):
    """The verdict of a checker on a loop. Its hooks in torch, and replacements, are taken back."""
    ran = []

    def run():
        ran.append(loop)
        return loop()

    asks = "asks-the-auditor", "your checker asks the auditor.", "Find the bug without it: what does a record count?"
    with ExitStack() as stack:
        stack.enter_context(patch("gradaudit.auditing.Auditor", side_effect=Mistake(*asks)))
        for owner, name in CALLS:
            stack.enter_context(patch.object(owner, name, getattr(owner, name)))
        for hooks in HOOKS:
            stack.enter_context(patch.dict(hooks))
        before = [*map(len, HOOKS)]
        said = truth(checker(run))
        if [*map(len, HOOKS)] != before:
            hint = "What removes a hook, or puts a replaced function back, if `run()` raises an error?"
            raise Mistake("leaves-hooks", "your checker has returned and left a hook on every optimizer.", hint)
    if not ran:
        hint = "What a loop does shows only while it runs. Call `run()` inside the block that watches it."
        raise Mistake("does-not-run", f"your checker returned {said} without running the loop.", hint)
    return said
