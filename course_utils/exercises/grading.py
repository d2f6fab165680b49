"""Exercises of the kind "write the test": the learner's checker looks at loops of the zoo, and the zoo grades it."""

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, optimizer

from course_utils.exercises.bench import Mistake, truth

Run = Callable[[], object]


def grade_on_zoo(checker: Callable[[Run], object], rules: Sequence[str]) -> int:
    """Shows a learner's checker buggy loops of the zoo, each with its fixed twin, and says how many there were.

    A checker gets a function without arguments or name that runs a loop, and returns whether the loop is buggy.

    Args:
        checker: The learner's function.
        rules: The rules of the zoo whose loops it must find, where a record can tell what an optimizer's updates hold.

    Raises:
        Mistake: `not-attempted` if it returns nothing; `wrong-type` for something else than True or False;
            `does-not-run` if it judges a loop that it has not run; `leaves-hooks` if it has not removed one;
            `misses-` and the name of a rule, for a buggy loop that it passes; `false-alarm` for a fixed twin that it
            accuses.
    """
    from course_utils.zoo import ZOO

    specimens = [specimen for specimen in ZOO.values() if specimen.rule in rules and specimen.holds]
    gc.freeze()  # record() looks through all objects, which needs a second for a whole session
    try:
        missed = [specimen for specimen in specimens if not _says(checker, specimen.buggy)]
        accused = [specimen for specimen in specimens if _says(checker, specimen.fixed)]
    finally:
        gc.unfreeze()
    if missed or accused:
        first, *_ = wrong = missed or accused
        what = f"{'misses' if missed else 'accuses the fixed twins of'} {len(wrong)} of {len(specimens)} buggy loops"
        names = ", ".join(specimen.name for specimen in wrong)
        about = f'What the buggy {first.name} does: "{first.what}" ({first.source})'
        raise Mistake(f"misses-{first.rule}" if missed else "false-alarm", f"your checker {what} ({names}). {about}")
    return len(specimens)


_CALLS = [
    *((torch.Tensor, "backward"), (torch.autograd, "backward"), (nn.Module, "zero_grad"), (nn.Module, "__call__")),
    *((Optimizer, "zero_grad"), (SGD, "step"), (AdamW, "step")),
]
_HOOKS = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks


def _says(checker: Callable[[Run], object], loop: Run) -> bool:
    """What a checker says about a loop, whose name and source it does not get to see.

    What it hooks into torch, or replaces in it, is taken back.
    """
    ran = []

    def run() -> object:
        ran.append(loop)
        return loop()

    asks = Mistake("asks-the-auditor", "your checker asks the auditor: find the bug without it.")
    with ExitStack() as stack:
        stack.enter_context(patch("gradaudit.auditing.Auditor", side_effect=asks))
        for owner, name in _CALLS:
            stack.enter_context(patch.object(owner, name, getattr(owner, name)))
        for hooks in _HOOKS:
            stack.enter_context(patch.dict(hooks))
        before = [*map(len, _HOOKS)]
        said = truth(checker(run))
        if [*map(len, _HOOKS)] != before:
            raise Mistake("leaves-hooks", "your checker has returned and left a hook on every optimizer.")
    if not ran:
        raise Mistake("does-not-run", f"your checker returned {said} without running the loop: call run().")
    return said
