"""The sheet for the wall: two pages on both papers, drawn from what real loops do, true to the registries."""

import re
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch
from course import NOTEBOOKS as BOOKS
from torch import nn

from course_utils import mlp, record, train_epoch, windows
from course_utils.publish.handouts import cheatsheet, editions, parts, press
from course_utils.publish.handouts.parts import take_apart
from course_utils.publish.handouts.silhouettes import BUGS, ledgers, silhouettes
from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit.compare import RULES

pytestmark = pytest.mark.skipif(
    not (find_spec("pypandoc") and find_spec("typst")), reason='needs the extra: pip install -e ".[handouts]"'
)

SIZES = {"a4": (841.89, 595.28), "letter": (792.0, 612.0)}  # points, landscape

each_paper = pytest.mark.parametrize("paper", press.PAPERS)
each_bug = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.rule)


@cache
def text():
    return cheatsheet.markdown(BOOKS)


@cache
def sheet(paper):
    return press.pdf(text(), {}, cheatsheet.TITLE, cheatsheet.EDITION, paper, cheatsheet.TEMPLATE)


drawn = cache(silhouettes)


# On paper


@each_paper
def test_it_has_two_pages_in_landscape(paper):
    boxes = re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", sheet(paper))
    assert [pytest.approx(SIZES[paper], abs=0.1)] * 2 == [tuple(map(float, box)) for box in boxes]


@pytest.mark.parametrize(("repository", "address"), [("", ""), ("someone/course", "github.com/someone/course")])
def test_the_address_is_that_of_pyproject(repository, address, monkeypatch):
    monkeypatch.setattr(cheatsheet, "hosted", lambda _: repository)
    assert cheatsheet._colophon()["address"] == address


# In front


def test_the_ledgers_show_one_loop_with_zeroing_in_windows_and_without_zeroing():
    shown = ledgers()
    steps = {name: [(norm, held) for _, norm, kind, held in points if kind == "step"] for name, points in shown.items()}
    assert {name: [held for _, held in found] for name, found in steps.items()} == {
        "zeroed": [1, 1, 1, 1], "windows": [4, 4], "never": [1, 2, 3, 4],
    }  # fmt: skip
    assert [held for *_, kind, held in shown["windows"] if kind == "backward"] == [1, 2, 3, 4] * 2
    large, small = ([norm for norm, _ in steps[name]] for name in ("zeroed", "windows"))
    assert small == pytest.approx(large[:2], rel=1e-12)  # the sheet says that their peaks are the same
    assert [kind for _, _, kind, _ in shown["never"]].count("zero") == 0


@each_bug
def test_a_silhouette_is_the_record_of_its_loops(bug):
    specimen = ZOO[bug.specimen]
    assert specimen.rule == bug.rule
    for found, loop in zip(drawn()[bug.rule], (specimen.buggy, specimen.fixed), strict=True):
        with record() as trace:
            loop()
        events = [event for event in trace.on() if event.kind != "forward"][: len(found)]
        assert [(norm, kind, held) for _, norm, kind, held in found] == [(e.norm, e.kind, e.held) for e in events]
        places = [x for x, *_ in found]
        assert all(before < after for before, after in pairwise(places))
        assert [x for x, _, kind, _ in found if kind == "backward"] == list(range(bug.micro_batches))


@pytest.mark.parametrize("settings", [{}, {"scaler": 1024.0, "max_norm": 0.01}])
def test_the_loop_is_that_of_the_helper(settings):
    data = [(torch.randn(size, 8), torch.randint(3, (size,))) for size in (4, 1, 3, 4, 2, 4)]

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def scaler(*_, **__):
        scale = settings.get("scaler")
        return torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)

    ours = mlp(8, 4, 3)
    theirs = deepcopy(ours)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    names = {
        "GradScaler": scaler, "is_float16": True, "optimizer": optimizers[0], "windows": windows, "batches": data,
        "n": 4, "weight": lambda batch: len(batch[1]), "model": ours, "autocast": nullcontext(), "loss_fn": loss_fn,
        "scheduler": schedules[0], "clip_grad_norm_": nn.utils.clip_grad_norm_,
        "max_norm": settings.get("max_norm", float("inf")),
    }  # fmt: skip
    exec(cheatsheet.loop(), names)
    arguments = settings | ({"scaler": scaler()} if "scaler" in settings else {})
    train_epoch(theirs, data, loss_fn, optimizers[1], n=4, scheduler=schedules[1], **arguments)
    for mine, helper in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, helper)
    assert schedules[0].get_last_lr() == schedules[1].get_last_lr() == [0.025]


# On the back


def test_it_has_every_pitfall_with_its_numbers_every_rule_and_every_row_of_the_table_of_what_is_exact():
    for pitfall in PITFALLS:
        assert "| " + " | ".join(cheatsheet._coded(said.rstrip(".")) for said in pitfall.row()) + " |" in text()
    assert {specimen.rule for specimen in ZOO.values()} <= {*RULES} <= set(re.findall(r"`([\w-]+)`", text()))
    (table,) = take_apart(BOOKS["07_exactness"]).of(parts.Table)
    assert len(table.rows) == 19
    for case, *_ in table.rows[1:]:
        assert f"| {editions.verbatim(case)} |" in text()


def test_code_in_a_pitfall_stays_code():
    assert cheatsheet._coded("sum: `a * b`, [c]") == r"sum\: `a * b`, \[c\]"
