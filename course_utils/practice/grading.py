"""Exercises of the kind "write the test": the learner's checker looks at loops of the zoo, and the zoo grades it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, optimizer

from course_utils.practice.bench import Mistake, only_new_objects, truth

if TYPE_CHECKING:
    from course_utils.zoo import Specimen

Run = Callable[[], object]


class _NoAudit(Exception):
    """Raised inside a checker that asks the auditor."""


def grade_on_zoo(checker: Callable[[Run], object], rules: Sequence[str]) -> int:
    """Shows a learner's checker buggy loops of the zoo, each with its fixed twin, and says how many there were.

    A checker gets a function without arguments or name that runs a loop, and returns whether the loop is buggy.

    Args:
        checker: The learner's function.
        rules: The rules of the zoo whose loops it must find, where a record can tell what an optimizer's updates hold.

    Raises:
        Mistake: `not-attempted` if it returns nothing; `wrong-type` for something else than True or False;
            `does-not-run` if it judges a loop that it has not run; `asks-the-auditor`; `leaves-hooks` if torch is not
            as before; `misses-` and the name of a rule, for a buggy loop that it passes; `false-alarm` for a fixed twin
            that it accuses.
    """
    from course_utils.zoo import ZOO

    specimens = [specimen for specimen in ZOO.values() if specimen.rule in rules and specimen.holds]
    loops = [(s, loop) for s in specimens for loop in (s.fixed, s.buggy)]
    with only_new_objects():  # record() looks through all of them
        wrong = [(s, loop) for s, loop in loops if _says(checker, loop) != (loop is s.buggy)]
    missed = [s for s, loop in wrong if loop is s.buggy]
    accused = [s for s, loop in wrong if loop is s.fixed]
    if not wrong:
        return len(specimens)
    parts = [f"misses {len(missed)} of {len(specimens)} buggy loops ({_names(missed)})"] if missed else []
    parts += [f"accuses the fixed twins of {_names(accused)}"] if accused else []
    first = (missed or accused)[0]
    about = f'What the buggy {first.name} does: "{first.what}" ({first.source})'
    bug = f"misses-{first.rule}" if missed else "false-alarm"
    raise Mistake(bug, f"your checker {' and '.join(parts)}. {about}")


def _names(specimens: Sequence["Specimen"]) -> str:
    return ", ".join(specimen.name for specimen in specimens)


def _says(checker: Callable[[Run], object], loop: Run) -> bool:
    """What a checker says about a loop, whose name and source it does not get to see."""
    ran = []

    def run() -> object:
        ran.append(loop)
        return loop()

    with patch("gradaudit.auditing.Auditor", side_effect=_NoAudit), _torch_as_before():
        try:
            said = checker(run)
        except _NoAudit:
            hint = "the auditor is what you are writing a part of: use record() or hooks"
            raise Mistake("asks-the-auditor", f"{hint}.") from None
    said = truth(said)
    if not ran:
        raise Mistake("does-not-run", f"your checker returned {said} without running the loop: call run().")
    return said


_CALLS = [(torch.Tensor, "backward"), (torch.autograd, "backward"), (nn.Module, "zero_grad"), (nn.Module, "__call__"),
          *((kind, name) for kind in (Optimizer, SGD, AdamW) for name in ("step", "zero_grad"))]  # fmt: skip
_HOOKS = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)


@contextmanager
def _torch_as_before() -> Iterator[None]:
    """Takes back what a checker hooks into torch or replaces in it, and says that it has left something there."""
    for kind in (SGD, AdamW):
        kind([torch.zeros(1, requires_grad=True)])  # torch itself replaces `step` of a class when it is first used
    calls, hooks = [vars(owner).get(name) for owner, name in _CALLS], [dict(kept) for kept in _HOOKS]
    try:
        yield
    finally:
        left = []
        for (owner, name), call in zip(_CALLS, calls, strict=True):
            if vars(owner).get(name) is not call:
                left.append(f"{owner.__name__}.{name}")
                setattr(owner, name, call) if call else delattr(owner, name)
        for kept, before in zip(_HOOKS, hooks, strict=True):
            if kept.keys() != before.keys():
                left.append("a hook on every optimizer")
                kept.clear()
                kept.update(before)
    if left:
        raise Mistake("leaves-hooks", f"when your checker has returned, torch is not as before: {', '.join(left)}.")
