"""Bugs planted in loops that the auditor's rules were not written with: each is found, and nothing else is.

What is wrong with a loop is known from the edit that was made to its source, not from the auditor.
"""

import linecache
from collections.abc import Callable
from itertools import cycle
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradaudit import audit

pytestmark = pytest.mark.filterwarnings("ignore:Detected call")

# The correct forms. Each update has the gradient of the mean over its window, clipped once.

IMPORTS = """\
from copy import deepcopy
from itertools import islice

from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
"""
BY_COUNT = """\
def loop(task, optimizer, n, limit):
    schedule = LinearLR(optimizer, start_factor=0.1, total_iters=6)
    for _ in range(2):
        for i, batch in enumerate(task.batches):
            held = min(n, len(task.batches) - i + i % n)
            (task.loss(batch) / held).backward()
            if (i + 1) % n == 0 or i + 1 == len(task.batches):
                clip_grad_norm_(task.model.parameters(), limit)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
"""
BY_WINDOW = """\
def loop(task, optimizer, n, limit):
    schedule = CosineAnnealingLR(optimizer, T_max=40)
    for _ in range(2):
        rest = iter(task.batches)
        while window := list(islice(rest, n)):
            total = sum(task.count(batch) for batch in window)
            optimizer.zero_grad()
            for batch in window:
                loss = task.loss(batch) * task.count(batch) / total
                loss.backward()
            clip_grad_norm_(task.model.parameters(), limit)
            optimizer.step()
            schedule.step()
"""
FORMS = {"count": BY_COUNT, "window": BY_WINDOW}


class Edit(NamedTuple):
    """A bug, as an edit to a form's source: `change` is (old, new), or a (line,) that goes, or to where `put` says.

    `also` are the rules that it breaks besides its own; `needs` is "tail", "ragged" or "equal" micro-batches.
    """

    kind: str
    rule: str
    form: str
    change: tuple[str, ...]
    put: str = ""
    also: tuple[str, ...] = ()
    needs: str = ""

    def __call__(self, source: str) -> str:
        old, *new = self.change
        assert old in source or self.put
        if new:
            return source.replace(old, new[0], 1)
        lines = [line for line in source.splitlines() if line.strip() != old]
        if self.put:
            side, _, anchor = self.put.partition(" ")
            at = next(k for k, line in enumerate(lines) if line.strip().startswith(anchor))
            indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
            lines.insert(at + (side == "after"), indent + old)
        return "\n".join(lines)


_ZERO, _STEP, _CLIP = "optimizer.zero_grad()", "optimizer.step()", "clip_grad_norm_(task.model.parameters(), limit)"
_SHARE, _REPLACED = "task.count(batch) / total", "task.model[-1] = deepcopy(task.model[-1])"


def _kind(kind: str, rule: str, *edits: tuple, **common) -> list[Edit]:
    return [Edit(kind, rule, form, change, **common | dict(*more)) for form, change, *more in edits]


EDITS = [
    *_kind("not divided", "loss-scale", ("count", ("(task.loss(batch) / held)", "task.loss(batch)")),
           ("window", (f" * {_SHARE}", ""), {"needs": "equal"})),
    *_kind("divided twice", "loss-scale", ("count", (" / held)", " / held / n)"))),
    *_kind("tail divided by N", "loss-scale", ("count", (" / held)", " / n)"), {"needs": "tail"})),
    *_kind("mean of unequal means", "token-weights", ("window", (_SHARE, "1 / len(window)")), needs="ragged"),
    *_kind("never zeroed", "stale-gradients", ("count", (_ZERO,)), ("window", (_ZERO,))),
    *_kind("zeroed once an epoch", "stale-gradients",
           ("count", (_ZERO,), {"put": "before for i"}), ("window", (_ZERO,), {"put": "before rest"})),
    *_kind("zeroed in each micro-batch", "discarded-gradients",
           ("count", (_ZERO,), {"put": "before held"}), ("window", (_ZERO,), {"put": "before loss ="}),
           also=("irregular-window",)),
    *_kind("zeroed before the step", "empty-step",
           ("count", (_ZERO,), {"put": "before clip"}), ("window", (_ZERO,), {"put": "before clip"}),
           also=("discarded-gradients", "clip-timing")),
    *_kind("tail without a step", "leftover-gradients",
           ("count", (" or i + 1 == len(task.batches)", "")), also=("irregular-window",), needs="tail"),
    *_kind("steps counted from 0", "irregular-window", ("count", ("(i + 1) % n == 0", "i % n == 0")),
           also=("loss-scale",)),
    *_kind("step in each micro-batch", "irregular-window",
           ("count", ("if (i + 1) % n == 0 or i + 1 == len(task.batches)", "if True")),
           ("window", (_STEP,), {"put": "after loss.backward()", "also": ("stale-gradients", "clip-timing")})),
    *_kind("clipped in each micro-batch", "clip-timing",
           ("count", (_CLIP,), {"put": "before if"}), ("window", (_CLIP,), {"put": "after loss.backward()"})),
    *_kind("clipped after the step", "clip-timing",
           ("count", (_CLIP,), {"put": "before schedule.step()"}),
           ("window", (_CLIP,), {"put": "before schedule.step()"})),
    *_kind("scheduler in each micro-batch", "scheduler-cadence",
           ("count", ("schedule.step()",), {"put": "before if"}),
           ("window", ("schedule.step()",), {"put": "after loss.backward()"})),
    *_kind("layer replaced too late", "orphan-parameters",
           *((form, (_REPLACED,), {"put": "before schedule ="}) for form in ("count", "window"))),
]  # fmt: skip


# What they train

LOSSES = {
    "cross entropy": F.cross_entropy,
    "smoothed": lambda scores, y: F.cross_entropy(scores, y, label_smoothing=0.1),
    "log-softmax": lambda scores, y: F.nll_loss(scores.log_softmax(-1), y),
    "multi-margin": F.multi_margin_loss,
    "bce": lambda scores, y: F.binary_cross_entropy_with_logits(scores, F.one_hot(y, 4).double()),
    "l1": lambda scores, y: F.l1_loss(scores, F.one_hot(y, 4).double()),
    "hinge by hand": lambda scores, y: (1 - scores * (2 * F.one_hot(y, 4) - 1)).clamp(min=0).mean(),
}
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def found(form: str, edit: Callable[[str], str], needs: str, loss: str, optimizer: str, n: int = 3) -> dict[str, str]:
    """What the auditor says of a form with an edit: the level of each rule."""
    sizes = [2, 5, 3, 7, 4, 9, 2, 6, 3] if needs == "ragged" else [6] * (3 * n + (needs == "tail"))
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    task = SimpleNamespace(
        model=model,
        batches=[(torch.randn(size, 16, dtype=torch.float64), torch.randint(4, (size,))) for size in sizes],
        loss=lambda batch: LOSSES[loss](model(batch[0]), batch[1]),
        count=lambda batch: len(batch[0]),
    )
    source, names = IMPORTS + edit(FORMS[form]), {}
    linecache.cache["planted.py"] = len(source), None, source.splitlines(keepends=True), "planted.py"
    exec(compile(source, "planted.py", "exec"), names)
    with audit(window=n) as report:
        names["loop"](task, OPTIMIZERS[optimizer](model.parameters()), n, 0.05)
    return {finding.rule: finding.level for finding in reversed(report.findings)}  # errors come first


@pytest.mark.parametrize(
    ("edit", "loss", "optimizer"),
    [
        pytest.param(edit, loss, optimizer, id=f"{edit.kind}, by {edit.form}")
        for edit, loss, optimizer in zip(EDITS, cycle(LOSSES), cycle(OPTIMIZERS), strict=False)
    ],
)
def test_a_planted_bug_is_found_under_its_rule_and_nothing_else_is(edit, loss, optimizer):
    levels = found(edit.form, edit, edit.needs, loss, optimizer)
    assert levels.keys() <= {edit.rule, *edit.also}
    assert levels[edit.rule] in ("error", "undecided")


@pytest.mark.parametrize("needs", ["equal", "ragged", "tail"])
@pytest.mark.parametrize("form", FORMS)
def test_a_correct_form_is_left_alone(form, needs):
    for loss, optimizer in zip(LOSSES, cycle(OPTIMIZERS), strict=False):
        if (form, needs) != ("count", "ragged"):  # it divides by the number of micro-batches
            assert found(form, str, needs, loss, optimizer) == {}
