"""The sheet for the wall: drawn from real loops, true to rules, pitfalls and notebook 07."""

import re
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn

import cheatsheet
from course import NOTEBOOKS as BOOKS
from course_utils import mlp, train_epoch, windows
from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from editions import coded
from gradaudit.rules import RULES

text = cache(lambda: cheatsheet.markdown(BOOKS))


def test_the_ledgers_show_one_loop_with_zeroing_in_windows_and_without_zeroing():
    shown = cheatsheet.ledgers()
    steps = {name: [(norm, held) for _, norm, kind, held in points if kind == "step"] for name, points in shown.items()}
    assert {name: [held for _, held in found] for name, found in steps.items()} == {
        "zeroed": [1, 1, 1, 1], "windows": [4, 4], "never": [1, 2, 3, 4],
    }  # fmt: skip
    assert [held for *_, kind, held in shown["windows"] if kind == "backward"] == [1, 2, 3, 4] * 2
    large, small = ([norm for norm, _ in steps[name]] for name in ("zeroed", "windows"))
    assert small == pytest.approx(large[:2], rel=1e-12)  # the sheet says that their peaks are the same
    assert [kind for _, _, kind, _ in shown["never"]].count("zero") == 0


@pytest.mark.parametrize(("specimen", "most"), cheatsheet.BUGS.values(), ids=cheatsheet.BUGS)
def test_a_silhouette_shows_a_bug_of_its_rule_beside_the_fixed_loop(specimen, most):
    assert ZOO[specimen].rule in RULES
    buggy, fixed = cheatsheet.silhouettes(specimen)
    for found in (buggy, fixed):
        assert all(before[0] < after[0] for before, after in pairwise(found))
        backward = [x for x, _, kind, _ in found if kind == "backward"]
        assert backward[:most] == list(range(most))
    assert [p for p in buggy if p[0] < most] != [p for p in fixed if p[0] < most]


@pytest.mark.parametrize(("scale", "max_norm"), [(None, float("inf")), (1024.0, 0.01)])
def test_the_loop_is_that_of_the_helper(scale, max_norm):
    data = [(torch.randn(size, 8), torch.randint(3, (size,))) for size in (4, 1, 3, 4, 2, 4)]

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def scaler(*_, **__):
        return torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)

    ours = mlp(8, 4, 3)
    theirs = deepcopy(ours)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    exec(cheatsheet.loop(), {
        "GradScaler": scaler, "is_float16": True, "optimizer": optimizers[0], "windows": windows, "batches": data,
        "n": 4, "weight": lambda batch: len(batch[1]), "model": ours, "autocast": nullcontext(), "loss_fn": loss_fn,
        "scheduler": schedules[0], "clip_grad_norm_": nn.utils.clip_grad_norm_, "max_norm": max_norm,
    })  # fmt: skip
    train_epoch(theirs, data, loss_fn, optimizers[1], 4, scheduler=schedules[1], scaler=scaler(), max_norm=max_norm)
    for mine, helper in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, helper)
    assert schedules[0].get_last_lr() == schedules[1].get_last_lr() == [0.025]


def test_it_has_every_pitfall_with_its_numbers_every_rule_and_every_row_of_the_table_of_what_is_exact():
    for specimen, pitfall in PITFALLS.items():
        assert "| " + " | ".join(coded(said.rstrip(".")) for said in pitfall.row(specimen)) + " |" in text()
    assert {specimen.rule for specimen in ZOO.values()} <= {*RULES} <= set(re.findall(r"`([\w-]+)`", text()))
    _, *rows = cheatsheet.decisions(BOOKS["07_exactness"])
    assert len(rows) == 21
    for case, *_ in rows:
        assert f"| {coded(case)} |" in text()


def test_the_committed_sheet_is_of_today(monkeypatch):
    handouts = pytest.importorskip("handouts", reason='needs the extra: pip install -e ".[docs]"')
    pinned = re.search(r'"torch==(.+)"', (handouts.ROOT / "pyproject.toml").read_text(encoding="utf-8"))[1]
    monkeypatch.setattr(torch, "__version__", pinned)
    ((name, make),) = handouts.jobs(BOOKS, ["cheatsheet"], [], "a4")
    committed = (handouts.ROOT / "notebooks" / name).read_bytes()
    assert make() == committed, "run: python docs/handouts.py --edition cheatsheet --out notebooks"
