"""record() and the audit see the same updates and windows: `python tests/observe/agreement.py`.

Both watch each program at once: every correct program, both loops of every specimen of the zoo, and the loops below,
which are hard to see through.

They agree on a program if they know the same optimizers under the same names and, for each, the same windows: how many
backward calls' gradients each step used, in order. Updates that a GradScaler skips are left out: the audit keeps them,
as skipped, and in a trace they are no steps. An optimizer that never steps has no windows in either. Updates by hand
are seen by the audit only, and compared with its own trace.
"""

import gc
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))

from correct_programs import PROGRAMS, batches, net
from course_utils import record
from course_utils.zoo import ZOO
from gradaudit import audit
from gradaudit.watch.by_hand import BY_HAND


class CallsInheritedStep(SGD):
    def step(self, closure=None):
        return super().step(closure)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an optimizer by its class, which holds another and lets it do the work."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups, self.defaults = inner.param_groups, inner.defaults

    def step(self, closure=None):
        return self.inner.step(closure)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int = 3, n: int = 2) -> None:
    for i, (x, y) in enumerate(batches(updates * n)):
        (nn.functional.cross_entropy(model(x), y) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def inherited_step() -> None:
    SGD([torch.zeros(1)], lr=0.1)  # PyTorch hooks the step of a class when it makes the first optimizer of it
    model = net()
    train(model, CallsInheritedStep(model.parameters(), lr=0.1))


def dropped_and_created_again() -> None:
    model = net()
    for _ in range(2):
        optimizer = SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    del optimizer
    optimizer = SGD(model.parameters(), lr=0.1)
    train(model, optimizer, n=3)


def wrapper() -> None:
    model = net()
    train(model, Wrapper(Adam(model.parameters())))


def with_closures(model: nn.Module, optimizer: torch.optim.Optimizer, zero: bool = True) -> None:
    for x, y in batches(3):

        def closure(x=x, y=y):
            if zero:
                optimizer.zero_grad()
            for _ in range(2):
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
            return loss

        optimizer.step(closure)


def closures() -> None:
    for optimizer_class in (SGD, CallsInheritedStep, LBFGS):
        for zero in (True, False):
            model = net()
            with_closures(model, optimizer_class(model.parameters(), lr=0.01), zero)


HARD = {function.__name__: function for function in (inherited_step, dropped_and_created_again, wrapper, closures)}
LOOPS: dict[str, Callable] = {
    **HARD,
    **PROGRAMS,
    **{f"{name}, {kind}": getattr(ZOO[name], kind) for name in ZOO for kind in ("buggy", "fixed")},
}


def windows(loop: Callable) -> tuple[dict, dict]:
    """The windows of each optimizer according to record(), and to the audit's history."""
    with record() as trace, audit() as report:
        loop()
    recorded = {lane: trace.windows(lane) for lane in trace.lanes}
    audited = {
        each.name: [update.held for update in each.updates if not update.skipped] for each in report.history.records
    }
    by_hand = {name: sizes for name, sizes in audited.items() if name.startswith(BY_HAND)}
    return stepping(recorded | by_hand), stepping(audited)


def stepping(windows: dict[str, list[int]]) -> dict[str, list[int]]:
    return {lane: sizes for lane, sizes in windows.items() if sizes}


def main() -> int:
    warnings.simplefilter("ignore")
    gc.freeze()
    agreed = 0
    for name, loop in tqdm(LOOPS.items(), leave=False):
        recorded, audited = windows(loop)
        if recorded == audited != {}:
            agreed += 1
        else:
            print(f"{name}: record() {recorded}, history {audited}")
    print(f"record() and the audit agree on {agreed} of {len(LOOPS)} programs")
    return agreed != len(LOOPS)


if __name__ == "__main__":
    sys.exit(main())
