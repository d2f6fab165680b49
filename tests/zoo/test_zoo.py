"""The zoo: every fixed loop has the gradients of large batches, every buggy loop has the bug that its `what` names."""

import inspect
import math
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils import record
from course_utils.zoo import ZOO
from course_utils.zoo.props import digit_batches, gan, perceptron, point_batches
from gradaudit.compare import RULES

LOOPS = [pytest.param(loop, id=loop.__name__) for s in ZOO.values() for loop in (s.buggy, s.fixed)]
pytestmark = pytest.mark.filterwarnings("ignore:Detected call", "ignore:Seems like")


def run(loop):
    """What a loop logs, and the gradients and the learning rate of each step, by the optimizer's number."""
    optimizers, gradients, rates = [], {}, []

    def note(optimizer, *_):
        if optimizer not in optimizers:
            optimizers.append(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        read = [None if p.grad is None else p.grad.clone() for p in parameters]
        gradients.setdefault(optimizers.index(optimizer), []).append(read)
        rates.append(optimizer.param_groups[0]["lr"])

    handle = register_optimizer_step_pre_hook(note)
    try:
        losses = loop()
    finally:
        handle.remove()
    return losses, gradients, rates


def held(loop):
    """The micro-batches in each update, by optimizer."""
    with record() as trace:
        loop()
    return {lane: trace.windows(lane) for lane in trace.lanes}


def norm(gradients):
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients))


def close(left, right, tolerance=1e-12):
    """Two lists of gradients are the same except for rounding."""
    return len(left) == len(right) and all(
        torch.allclose(a, b, rtol=0, atol=tolerance * max(1, norm(right))) for a, b in zip(left, right, strict=True)
    )


def test_the_catalogue_has_a_file_for_each_rule_and_a_public_source_for_each_loop():
    assert {each.rule for each in ZOO.values()} == RULES.keys() - {"sync-cadence"}  # it needs several ranks
    assert len({each.source for each in ZOO.values()}) == len(ZOO)
    for name, each in ZOO.items():
        assert each.name == name == each.buggy.__name__.replace("_", "-")
        assert each.fixed.__name__ == f"{each.buggy.__name__}_fixed"
        assert each.buggy.__module__ == each.fixed.__module__ == f"course_utils.zoo.{each.rule.replace('-', '_')}"
        repository, number = each.source.split("#")
        assert each.url in [f"https://github.com/{repository}/{kind}/{number}" for kind in ("issues", "pull")]
        source = inspect.getsource(each.buggy)
        assert each.listing().splitlines() == ["def loop():", *source[source.index("def ") :].splitlines()[1:]]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_repeats_itself_in_any_default_dtype_and_leaves_no_trace(loop):
    losses, gradients, _ = run(loop)
    assert losses
    assert all(isinstance(loss, float) and math.isfinite(loss) for loss in losses)
    if loop.__name__.removesuffix("_fixed") != "update_by_hand_never_zeroed":  # it has no optimizer
        assert sum(map(len, gradients.values())) >= 3
    torch.set_default_dtype(torch.float64)
    state = torch.get_rng_state()
    assert loop() == losses
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float64
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_only_the_schedules_that_are_stepped_too_early_warn():
    warned = set()
    for loop in (loop.values[0] for loop in LOOPS):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loop()
        warned |= {loop.__name__} if caught else set()
    assert warned == {"warmup_in_micro_batches", "decay_in_micro_batches"}


# At each step of a fixed loop the gradient is that of one large batch which holds the whole window.

BY_HAND = {  # other optimizers, losses or precisions, a batch that is left out: some are in the tests below
    "critic-zeroed-once", "critic-with-the-generators-gradients", "critic-with-a-window-of-both",
    "scaler-made-in-every-epoch", "scaler-updated-twice", "added-up-in-bfloat16",
    "step-jumped-over", "zeroed-by-one-loss", "local-model-never-zeroed", "update-by-hand-never-zeroed",
    "memory-carried-with-its-graph", "distilled-and-never-divided",
}  # fmt: skip
CORRECT_GRADIENT = {  # buggy loops whose bug is not in the gradient
    "warmup-in-micro-batches", "decay-in-micro-batches", "one-backward-per-window", "running-loss-with-its-graphs",
    "step-without-a-target",
}  # fmt: skip


def are_those_of_large_batches(loop, monkeypatch):
    """Runs a loop and compares the gradient at each step with that of all micro-batches since the last one, as one."""
    module = sys.modules[loop.__module__]
    window, inputs, steps, max_norms = [], [], [], [math.inf]

    def keep_inputs(model, arguments):
        if isinstance(model, nn.Sequential):
            inputs.append((model, *arguments))

    def keep_targets(logits, targets, **options):
        window.append((*inputs[-1], targets))
        return cross_entropy(logits, targets, **options)

    def keep_limit(parameters, max_norm):
        max_norms.append(max_norm)
        return clip_grad_norm_(parameters, max_norm)

    def compare(optimizer, *_):
        (model,) = {model for model, *_ in window}
        x, targets = (torch.cat(parts) for parts in list(zip(*window, strict=True))[1:])
        loss = cross_entropy(model(x).flatten(0, -2), targets.flatten())
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        parameters = list(model.parameters())
        used = [p.grad.clone() if id(p) in owned and p.grad is not None else torch.zeros_like(p) for p in parameters]
        steps.append((used, [g.clone() for g in torch.autograd.grad(loss, parameters)]))
        window.clear()

    monkeypatch.setattr(module, "cross_entropy", keep_targets)
    if hasattr(module, "clip_grad_norm_"):
        monkeypatch.setattr(module, "clip_grad_norm_", keep_limit)
    handles = [register_module_forward_pre_hook(keep_inputs), register_optimizer_step_pre_hook(compare)]
    try:
        loop()
    finally:
        for handle in handles:
            handle.remove()
    limit = min(max_norms)
    expected = [times(min(1.0, limit / (norm(large) + 1e-6)), large) for _, large in steps]
    return not window and all(close(used, e) for (used, _), e in zip(steps, expected, strict=True))


@pytest.mark.parametrize("name", [name for name in ZOO if name not in BY_HAND])
def test_a_fixed_loop_has_the_gradients_of_large_batches_and_a_buggy_one_has_not(name, monkeypatch):
    assert are_those_of_large_batches(ZOO[name].fixed, monkeypatch)
    monkeypatch.undo()
    assert are_those_of_large_batches(ZOO[name].buggy, monkeypatch) == (name in CORRECT_GRADIENT)


def times(factor, gradients):
    return [factor * g for g in gradients]


def joined(window):
    return (torch.cat(parts) for parts in zip(*window, strict=True))


def cut(batches, n):
    return [batches[k : k + n] for k in range(0, len(batches), n)]


def move(model, loss, rate=0.1):
    """A step without `.grad`; returns the gradient."""
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), gradients, strict=True):
            p -= rate * g
    return list(gradients)


def large_batches(windows, *widths):
    """The gradients of a training run with one batch per window."""
    model = perceptron(*(widths or (64, 16, 10)))
    return [move(model, cross_entropy(model(x), y)) for x, y in map(joined, windows)]


def without(place):
    return cut([batch for k, batch in enumerate(digit_batches(17)) if k != place], 4)


def bce(logits, target):
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


def critics(window, critic_first):
    """The GANs a second time: what the critic and the generator learn from each window."""
    generator, critic, *_ = gan()
    learned = {0: [], 1: []}

    def critic_steps(pairs):
        for real, noise in pairs:
            loss = bce(critic(real), 1.0) + bce(critic(generator(noise).detach()), 0.0)
            learned[0 if critic_first else 1].append(move(critic, loss))

    for pairs in cut(point_batches(12), window):
        if critic_first:
            critic_steps(pairs)
        loss = bce(critic(generator(pairs[-1][1])), 1.0)
        learned[1 if critic_first else 0].append(move(generator, loss))
        if not critic_first:
            critic_steps(pairs)
    return learned


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step-jumped-over", lambda: {0: large_batches(without(7))}),
        ("zeroed-by-one-loss", lambda: {0: large_batches(without(6))}),
        ("local-model-never-zeroed", lambda: {0: large_batches(cut(2 * digit_batches(6), 1))}),
        (
            "scaler-updated-twice",
            lambda: {k: large_batches(cut(digit_batches(8), 1), *widths) for k, widths in enumerate([(64, 10), ()])},
        ),
        ("critic-zeroed-once", lambda: critics(2, critic_first=True)),
        ("critic-with-the-generators-gradients", lambda: critics(1, critic_first=False)),
    ],
)
def test_a_fixed_loop_of_another_kind_is_what_it_is_when_written_a_second_time(name, expected):
    found, expected = run(ZOO[name].fixed)[1], expected()
    assert found.keys() == expected.keys()
    for number, gradients in expected.items():
        assert len(found[number]) == len(gradients)
        assert all(map(close, found[number], gradients))
    assert not all(map(close, *(run(loop)[1][max(found)] for loop in (ZOO[name].buggy, ZOO[name].fixed))))


# The buggy loops: what each update holds


@pytest.mark.parametrize("name", [name for name, specimen in ZOO.items() if specimen.holds])
def test_the_updates_of_a_buggy_loop_hold_what_it_says(name):
    assert held(ZOO[name].buggy) == ZOO[name].holds


@pytest.mark.parametrize(
    ("name", "factor"),
    [("never-divided", 4), ("divided-for-the-log", 4), ("divided-twice", 0.25), ("distilled-and-never-divided", 4)],
)
def test_a_buggy_scale_multiplies_the_gradient(name, factor):
    (buggy, *_), (fixed, *_) = (run(loop)[1][0] for loop in (ZOO[name].buggy, ZOO[name].fixed))
    assert close(buggy, times(factor, fixed))


@pytest.mark.parametrize("name", ["zeroed-before-the-step", "optimizer-before-wrapping"])
def test_a_model_whose_optimizer_has_no_gradients_never_learns(name):
    losses, gradients, _ = run(ZOO[name].buggy)
    assert all(gradient is None for read in gradients[0] for gradient in read)
    assert losses[:6] == losses[6:]


@pytest.mark.parametrize(
    ("name", "buggy", "fixed"),
    [
        ("warmup-in-micro-batches", [0.08125, *[0.1] * 5], [0.025, 0.04375, 0.0625, 0.08125, 0.1, 0.1]),
        ("decay-in-micro-batches", [0.05, *[0] * 5], [0.1 * (1 - k / 6) for k in range(6)]),
    ],
)
def test_a_schedule_stepped_in_micro_batches_ends_too_early(name, buggy, fixed):
    assert run(ZOO[name].buggy)[2] == pytest.approx(buggy)
    assert run(ZOO[name].fixed)[2] == pytest.approx(fixed)
