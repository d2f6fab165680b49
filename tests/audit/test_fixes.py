"""The fix by its cause, and by the loop's framework: small stand-ins where packages lie."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from course_utils.zoo import ZOO
from gradaudit import audit
from gradaudit.callsite import short
from runs import data, scaled_steps, update, with_sgd

FILES = {
    "accelerate": "accelerate/accelerator.py",
    "transformers": "transformers/trainer.py",
    "trl": "trl/trainer/sft_trainer.py",
    "lightning": "lightning/pytorch/core/module.py",
    "": "some_engine/engine.py",
}
TAIL = {"divide": 4, "count": 10, "condition": lambda i, n: (i + 1) % n == 0 or i == 9}
CODE = """
def call(function, *arguments):
    return function(*arguments)
"""


@pytest.fixture
def installed(tmp_path):
    """A function that calls another one from the file of an installed package."""

    def install(path):
        file = tmp_path / "site-packages" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CODE)
        names = {}
        exec(compile(CODE, str(file), "exec"), names)
        return names["call"]

    return install


def plain(out, y):
    return F.cross_entropy(out, y)


def two_losses(out, y):
    return 0.3 * F.cross_entropy(out, y) + 0.7 * F.mse_loss(out, torch.zeros_like(out))


def train(call, divide=1, n=4, count=8, masked=lambda i: 0, condition=lambda i, n: (i + 1) % n == 0, loss=plain):
    model, optimizer = with_sgd()
    for i, (x, y) in enumerate(data(count)):
        y[: masked(i)] = -100
        call(torch.Tensor.backward, loss(model(x), y) / divide)
        if condition(i, n):
            update(optimizer)


def fixes(report):
    return {finding.rule: finding.fix for finding in report.findings}


@pytest.mark.parametrize("framework", FILES)
def test_each_framework_is_known_by_its_files(framework, installed):
    with audit() as report:
        train(installed(FILES[framework]))
    assert report.findings[0].where.framework == framework
    assert report.findings[0].where.startswith(f"{__file__}:")  # the user's line, beneath the library
    assert short(report.findings[0].where.via) == f"{FILES[framework]}:3"


@pytest.mark.parametrize(
    ("framework", "options", "rule", "words"),
    [
        ("accelerate", {}, "loss-scale", "Accelerator(gradient_accumulation_steps=4)"),
        ("accelerate", {"divide": 4, "count": 10}, "leftover-gradients", "accelerator.accumulate(model)"),
        ("transformers", {}, "loss-scale", "model.accepts_loss_kwargs = False"),
        ("transformers", {"divide": 4, "masked": lambda i: i % 4}, "token-weights", "num_items_in_batch"),
        ("trl", {"divide": 16}, "loss-scale", "compute_loss()"),
        ("accelerate", TAIL, "loss-scale", "since Accelerate divides by 4"),
        ("lightning", TAIL, "loss-scale", "since Lightning divides by 4"),
    ],
)
def test_a_fix_speaks_the_frameworks_arguments(framework, options, rule, words, installed):
    with audit() as report:
        train(installed(FILES[framework]), **options)
    assert words in fixes(report)[rule]
    with audit() as report:
        train(installed(FILES[""]), **options)
    assert words not in fixes(report)[rule]


@pytest.mark.parametrize(("told", "sizes"), [(4, []), (2, ["irregular-window"]), (1, [])])
@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_the_window_that_a_framework_was_told_is_the_one_that_was_meant(framework, told, sizes, installed, monkeypatch):
    Trainer = type("Trainer", (), {"accumulate_grad_batches": told})
    trainer = Trainer()  # alive until the audit ends
    state = SimpleNamespace(_shared_state={"plugin_kwargs": {"num_steps": told}})
    names = {"accelerate": "accelerate.state", "lightning": "lightning.pytorch.trainer.trainer"}
    monkeypatch.setitem(sys.modules, names[framework], SimpleNamespace(GradientState=state, Trainer=Trainer))
    call = installed(FILES["accelerate"])
    model, optimizer = with_sgd()
    with audit() as report:
        for i, (x, y) in enumerate(data(10), start=1):
            call(torch.Tensor.backward, plain(model(x), y) / (4 if i <= 8 else 2))
            if i % 4 == 0 or i == 10:
                call(optimizer.step)
                optimizer.zero_grad()
    assert trainer.accumulate_grad_batches == told
    assert report.rules == sizes
    assert ("told to" in report.summary()) == (told > 1)


@pytest.mark.parametrize(
    ("name", "zeroing"), [("critic-with-a-window-of-both", False), ("critic-with-the-generators-gradients", True)]
)
def test_zeroing_between_two_losses_is_advised_only_without_accumulation(name, zeroing):
    with audit() as report:
        ZOO[name].buggy()
    fix = "freeze the parameters of SGD 2 during the backward pass of SGD's loss"
    fix += ", or zero them before the first backward pass of a window" if zeroing else ""
    assert fixes(report) == {"foreign-gradients": fix}


def test_a_step_that_is_skipped_a_second_time_is_no_second_step():
    def skip(model, optimizer, scaler):
        scaler.step(optimizer)
        scaler.update()

    with audit() as report:
        scaled_steps([float("inf")] * 4, before_the_step=skip)
    assert "two steps" not in fixes(report)["stale-gradients"]
