"""The exercise of *how the auditor knows*: the zoo's loops grade the learner's checker."""

import gc
from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, optimizer

from course_utils.exercises.judging import Mistake, exercise, same, truth

RULES = "stale-gradients", "discarded-gradients", "leftover-gradients"
NOT_COUNTED = {"local-model-never-zeroed", "update-by-hand-never-zeroed", "gradients-in-one-buffer"}
HINT = "In a correct loop, how often does each gradient enter an update? Look at each optimizer, and at what is left."
REMOVED = "What removes a hook, or puts a replaced function back, if `run()` raises an error?"
HOOKS = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
# What a checker may replace while a loop runs.
CALLS = (torch.Tensor, "backward"), (torch.autograd, "backward"), (nn.Module, "zero_grad"), (nn.Module, "__call__")
STEPS = (Optimizer, "zero_grad"), (SGD, "step"), (AdamW, "step")


@exercise(
    "your checker finds each public bug of three kinds, and accuses none of the fixed loops.",
    extra=40.0,  # twenty trainings
)
def write_the_test(answer):
    """Shows a checker buggy loops and their fixed twins. What it leaves in torch is taken back."""
    from course_utils.zoo import ZOO

    loops = [each for each in ZOO.values() if each.rule in RULES and each.name not in NOT_COUNTED]
    hooks = sum(map(len, HOOKS))
    with ExitStack() as stack:
        gc.freeze()  # record() looks through all objects, which needs a second for a whole session
        stack.callback(gc.unfreeze)
        for owner, name in (*CALLS, *STEPS):
            stack.enter_context(patch.object(owner, name, getattr(owner, name)))
        for registry in HOOKS:
            stack.enter_context(patch.dict(registry))
        missed = [each for each in loops if not truth(answer(lambda each=each: each.buggy()))]
        accused = [each.name for each in loops if truth(answer(lambda each=each: each.fixed()))]
        left = sum(map(len, HOOKS)) - hooks
    if missed:
        first, names = missed[0], ", ".join(each.name for each in missed)
        message = f"your checker misses {names}. {first.name}: {first.what} ({first.source})"
        raise Mistake(f"misses-{first.rule}", message, HINT)
    same("loops whose fixed twins your checker accuses", accused, [], "false-alarm", HINT)
    same("hooks that your checker has left on every optimizer", left, 0, "leaves-hooks", REMOVED)
