"""The zoo: fixed loops have the gradients of large batches, and buggy loops the bugs they name."""

import inspect
import math
import re
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils import record
from course_utils.zoo import ZOO
from gradaudit.rules import RULES

LOOPS = [pytest.param(loop, id=f"{name}, {loop.__name__}") for name, s in ZOO.items() for loop in (s.buggy, s.fixed)]
pytestmark = pytest.mark.filterwarnings("ignore:Detected call", "ignore:Seems like")


def test_the_catalogue_has_a_loop_for_each_rule_and_a_public_source_for_each_loop():
    assert {each.rule for each in ZOO.values()} == RULES.keys() - {"sync-cadence"}  # needs ranks
    assert len({each.source for each in ZOO.values()}) == len(ZOO)
    for each in ZOO.values():
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", each.url)
        lines, listed = inspect.getsource(each.loop).splitlines(), each.listing().splitlines()
        assert listed[:2] == [f"def loop({each.takes}):", lines[1 - len(listed)]]
        assert not {each.what, each.name} & set(each.listing())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_repeats_itself_in_any_default_dtype_and_leaves_no_trace(loop):
    losses = loop()
    assert losses
    assert all(isinstance(loss, float) and math.isfinite(loss) for loss in losses)
    torch.set_default_dtype(torch.float64)
    state = torch.get_rng_state()
    assert loop() == losses
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float64
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


# At each step of a fixed loop the gradient is that of one large batch which holds the window.

OTHER = {  # other optimizers, losses or precisions
    "critic-zeroed-once", "critic-with-the-generators-gradients", "critic-with-a-window-of-both",
    "scaler-made-in-every-epoch", "scaler-updated-twice", "added-up-in-bfloat16", "update-by-hand-never-zeroed",
    "memory-carried-with-its-graph", "distilled-and-never-divided",
}  # fmt: skip
CORRECT_GRADIENT = {  # buggy loops whose bug is not in the gradient
    "warmup-in-micro-batches", "decay-in-micro-batches", "one-backward-per-window", "running-loss-with-its-graphs",
    "step-without-a-target",
}  # fmt: skip


def are_those_of_large_batches(specimen, loop, monkeypatch):
    """Whether each step's gradient is that of all micro-batches since the last step, as one."""
    module = sys.modules[specimen.loop.__module__]
    window, inputs, steps, limits = [], [], [], [math.inf]

    def keep_inputs(model, arguments):
        if isinstance(model, nn.Sequential):
            inputs.append((model, *arguments))

    def keep_targets(logits, targets, **options):
        loss = cross_entropy(logits, targets, **options)
        if loss.isfinite().all():
            window.append((*inputs[-1], targets))
        return loss

    def keep_limit(parameters, max_norm):
        limits.append(max_norm)
        return clip_grad_norm_(parameters, max_norm)

    def compare(optimizer, *_):
        parameters = optimizer.param_groups[0]["params"]
        used = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        (model,) = {model for model, *_ in window}
        x, targets = (torch.cat(parts) for parts in list(zip(*window, strict=True))[1:])
        loss = cross_entropy(model(x).flatten(0, -2), targets.flatten())
        large = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        steps.append((used, large))
        window.clear()

    monkeypatch.setattr(module, "cross_entropy", keep_targets)
    monkeypatch.setattr(functional, "cross_entropy", keep_targets)
    monkeypatch.setattr(module, "clip_grad_norm_", keep_limit, raising=False)
    handles = [register_module_forward_pre_hook(keep_inputs), register_optimizer_step_pre_hook(compare)]
    try:
        loop()
    finally:
        for handle in handles:
            handle.remove()
    expected = [large * min(1.0, min(limits) / (float(large.norm()) + 1e-6)) for _, large in steps]
    return not window and all(
        torch.allclose(used, right, rtol=0, atol=1e-12 * max(1, float(right.norm())))
        for (used, _), right in zip(steps, expected, strict=True)
    )


@pytest.mark.parametrize("name", [name for name in ZOO if name not in OTHER])
def test_a_fixed_loop_has_the_gradients_of_large_batches_and_a_buggy_one_has_not(name, monkeypatch):
    assert are_those_of_large_batches(ZOO[name], ZOO[name].fixed, monkeypatch)
    assert are_those_of_large_batches(ZOO[name], ZOO[name].buggy, monkeypatch) == (name in CORRECT_GRADIENT)


# The buggy loops

NUMBERS = {name: re.search(r"updates (?:hold|use) ([\d, and]+)", specimen.what) for name, specimen in ZOO.items()}


@pytest.mark.parametrize("name", [name for name, found in NUMBERS.items() if found])
def test_the_updates_of_a_buggy_loop_hold_what_it_says(name):
    said = [int(number) for number in re.findall(r"\d+", NUMBERS[name][1])]
    with record() as trace:
        ZOO[name].buggy()
    assert trace.updates()[: len(said)] == said


@pytest.mark.parametrize(
    ("name", "buggy", "fixed"),
    [
        ("warmup-in-micro-batches", [0.08125, *[0.1] * 5], [0.025, 0.04375, 0.0625, 0.08125, 0.1, 0.1]),
        ("decay-in-micro-batches", [0.05, *[0] * 5], [0.1 * (1 - k / 6) for k in range(6)]),
    ],
)
def test_a_schedule_stepped_in_micro_batches_ends_too_early(name, buggy, fixed):
    for loop, expected in ((ZOO[name].buggy, buggy), (ZOO[name].fixed, fixed)):
        rates = []
        handle = register_optimizer_step_pre_hook(lambda o, *_, rates=rates: rates.append(o.param_groups[0]["lr"]))
        try:
            loop()
        finally:
            handle.remove()
        assert rates == pytest.approx(expected)
