"""What shares the update with the step: token weights, the scaler, clipping, the schedule, autocast; all at once."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from breakages import BREAKAGES
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, ReduceLROnPlateau, SequentialLR

from course_utils import evaluate, mlp, record, train_epoch, windows

LENGTHS = ([5, 1], [2], [9, 3, 1], [1], [4, 4], [7], [0, 0], [2, 8, 1], [1])  # valid tokens of each sequence
MAX_NORM = 0.3  # the gradients of most windows have a larger norm
ON_A_SKIPPED_UPDATE = "package: train_epoch steps the scheduler on a skipped update"  # this comparison skips none


def masked_mse(model, batch):
    squares = (model(batch["x"]) - batch["y"]).square().sum(-1)
    return (squares * batch["mask"]).sum() / batch["mask"].sum()


def tokens(batch):
    return batch["mask"].sum()


def micro_batch(lengths, width=9):
    return {
        "x": torch.randn(len(lengths), width, 3),
        "y": torch.randn(len(lengths), width, 2),
        "mask": (torch.arange(width) < torch.tensor(lengths)[:, None]).to(torch.get_default_dtype()),
    }


@pytest.fixture
def model():
    torch.set_default_dtype(torch.float64)
    return mlp(3, 5, 2)


@pytest.fixture
def batches(model):
    return [micro_batch(lengths) for lengths in LENGTHS]


def joined(window):
    return {key: torch.cat([batch[key] for batch in window]) for key in window[0]}


def gradients_at_steps(model, optimizer):
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in model.parameters()]))
    return seen


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def large_batches(model, batches, optimizer, scheduler, n):
    """One padded batch per window, clipped: no scaler, no weights, nothing accumulated."""
    losses = []
    for window in windows(batches, n):
        optimizer.zero_grad()
        loss = masked_mse(model, joined(window))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def compare_with_large_batches(model, batches, make, n):
    large = copy.deepcopy(model)
    optimizer, large_optimizer = make(model.parameters()), make(large.parameters())
    scheduler, large_scheduler = ExponentialLR(optimizer, 0.5), ExponentialLR(large_optimizer, 0.5)
    ours, theirs = gradients_at_steps(model, optimizer), gradients_at_steps(large, large_optimizer)
    options = {"weight": tokens, "scaler": GradScaler("cpu"), "max_norm": MAX_NORM, "scheduler": scheduler}
    for _ in range(2):
        losses = train_epoch(model, batches, masked_mse, optimizer, n=n, **options)
        expected = large_batches(large, batches, large_optimizer, large_scheduler, n)
        assert losses == pytest.approx(expected, rel=0, abs=1e-12)
    assert len(ours) == len(theirs) == 2 * math.ceil(len(batches) / n)
    for one, other in zip([*ours, list(model.parameters())], [*theirs, list(large.parameters())], strict=True):
        for p, q in zip(one, other, strict=True):
            assert torch.allclose(p, q, rtol=0, atol=1e-12)
    assert scheduler.get_last_lr() == large_scheduler.get_last_lr()


# Token weights, the scaler, clipping and the schedule at once


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 100])
def test_every_scaled_clipped_scheduled_update_is_that_of_the_large_batch(model, batches, make, n):
    compare_with_large_batches(model, batches, make, n)


@pytest.mark.filterwarnings("ignore")  # torch and train_epoch see some of the breakages, too
@pytest.mark.parametrize(
    "name", [name for name in BREAKAGES if name.startswith("package: ") and name != ON_A_SKIPPED_UPDATE]
)
def test_each_way_to_break_the_loop_is_seen_by_this_comparison(model, batches, name):
    with BREAKAGES[name](), pytest.raises(AssertionError):
        compare_with_large_batches(model, batches, sgd, n=4)


def test_the_windows_of_this_comparison_are_large_enough_to_be_clipped(model, batches):
    for window in windows(batches, 4):
        model.zero_grad()
        masked_mse(model, joined(window)).backward()
        assert nn.utils.get_total_norm([p.grad for p in model.parameters()]) > MAX_NORM


def test_within_a_window_gradients_are_unscaled_then_clipped_then_used_then_zeroed(model, batches):
    optimizer = sgd(model.parameters())
    with record() as trace:
        train_epoch(
            model, batches[:4], masked_mse, optimizer, n=2, weight=tokens, scaler=GradScaler("cpu"), max_norm=MAX_NORM
        )
    assert str(trace) == "SGD  f b f b c S z f b f b c S z"
    step = next(event for event in trace.events if event.kind == "step")
    assert math.isclose(step.norm, MAX_NORM, rel_tol=1e-5)


# Autocast


def relative_error(model, exact):
    ours = torch.cat([p.grad.flatten().double() for p in model.parameters()])
    theirs = torch.cat([p.grad.flatten() for p in exact.parameters()])
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(5))
def test_under_autocast_accumulation_adds_no_error_of_its_own(dtype, seed):
    torch.manual_seed(seed)
    model = mlp(3, 32, 2)
    batches = [micro_batch(lengths) for lengths in LENGTHS]
    exact = copy.deepcopy(model).double()
    masked_mse(exact, {key: value.double() for key, value in joined(batches).items()}).backward()

    autocast = torch.autocast("cpu", dtype)
    with autocast:
        loss = masked_mse(model, joined(batches))
    loss.backward()
    unaccumulated = relative_error(model, exact)
    assert unaccumulated > 1e-5, "autocast has not rounded anything"

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    errors = []
    optimizer.register_step_pre_hook(lambda *_: errors.append(relative_error(model, exact)))
    scaler = GradScaler("cpu") if dtype == torch.float16 else None
    train_epoch(model, batches, masked_mse, optimizer, n=100, weight=tokens, autocast=autocast, scaler=scaler)
    assert len(errors) == 1
    assert errors[0] <= 2 * unaccumulated


def test_the_forward_runs_under_autocast_and_the_backward_outside_of_it(model):
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(torch.is_autocast_enabled("cpu"))
            return gradient

    def loss_fn(model, batch):
        return Look.apply(model(batch)).mean()

    train_epoch(model, [torch.ones(1, 3)] * 3, loss_fn, sgd(model.parameters()), n=2, autocast=torch.autocast("cpu"))
    assert seen == [True, False] * 3


# A step that the scaler skips


def with_infinity_in(batches, place):
    return [{**batch, "y": batch["y"] * (math.inf if k == place else 1)} for k, batch in enumerate(batches)]


@pytest.mark.filterwarnings("ignore:1 of 3 windows made no update")
@pytest.mark.parametrize("fused", [False, True])
def test_an_infinite_micro_batch_costs_its_window_and_nothing_else(model, batches, fused):
    batches = batches[:6]
    clean = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    scheduler, scaler = ExponentialLR(optimizer, 0.5), GradScaler("cpu")
    losses = train_epoch(
        model, with_infinity_in(batches, 3), masked_mse, optimizer, 2, tokens, scaler=scaler, scheduler=scheduler
    )
    assert [math.isfinite(loss) for loss in losses] == [True, False, True]
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2, "two updates were made, so there are two scheduler steps"
    assert scaler.get_scale() == 2**15

    train_epoch(clean, batches[:2] + batches[4:], masked_mse, large := sgd(clean.parameters()), 2, tokens,
                scheduler=ExponentialLR(large, 0.5))  # fmt: skip
    for p, q in zip(model.parameters(), clean.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:1 of 3 windows made no update")
def test_a_scheduler_step_on_a_skipped_update_is_seen(model, batches):
    with (
        BREAKAGES[ON_A_SKIPPED_UPDATE](),
        pytest.raises(AssertionError, match="so there are two scheduler steps"),
    ):
        test_an_infinite_micro_batch_costs_its_window_and_nothing_else(model, batches, fused=False)


def test_a_scale_that_grows_is_no_skipped_step(model, batches):
    optimizer = sgd(model.parameters())
    scheduler, scaler = ExponentialLR(optimizer, 0.5), GradScaler("cpu", growth_interval=1)
    train_epoch(model, batches, masked_mse, optimizer, 4, tokens, scaler=scaler, scheduler=scheduler)
    assert scaler.get_scale() == 2.0 ** (16 + 3)
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["in the forward", "in the step"])
def test_after_an_error_the_scaler_and_the_model_can_be_used_again(model, batches, error, where):
    optimizer, scaler = sgd(model.parameters()), GradScaler("cpu")
    fail = [True]

    def raise_once(*_):
        if fail:
            fail.clear()
            raise error

    def fails(model, batch):
        if batch is batches[2]:
            raise_once()
        return masked_mse(model, batch)

    handle = optimizer.register_step_pre_hook(raise_once) if where == "in the step" else None
    with pytest.raises(error):
        train_epoch(model, batches, masked_mse if handle else fails, optimizer, 4, tokens, scaler=scaler)
    clean = copy.deepcopy(model)
    clean.zero_grad()
    train_epoch(model, batches, masked_mse, optimizer, 4, tokens, scaler=scaler)
    train_epoch(clean, batches, masked_mse, sgd(clean.parameters()), 4, tokens)
    for p, q in zip(model.parameters(), clean.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-12)


# Micro-batches without a valid token


def test_a_micro_batch_of_weight_0_is_left_out_and_not_even_run(model, batches):
    empty = LENGTHS.index([0, 0])
    assert masked_mse(model, batches[empty]).isnan()
    ran = []

    def noted(model, batch):
        ran.append(next(k for k, other in enumerate(batches) if other is batch))
        return masked_mse(model, batch)

    losses = train_epoch(model, batches, noted, sgd(model.parameters()), n=4, weight=tokens)
    assert empty not in ran
    assert len(ran) == len(batches) - 1
    assert all(map(math.isfinite, losses))
    assert math.isfinite(evaluate(model, batches, masked_mse, weight=tokens))


def test_a_window_that_holds_nothing_makes_no_update_and_its_schedule_waits(model, batches):
    empty = batches[LENGTHS.index([0, 0])]
    optimizer = sgd(model.parameters())
    scheduler = ExponentialLR(optimizer, 0.5)
    steps = gradients_at_steps(model, optimizer)
    mixed = [empty, empty, batches[0], batches[1], empty, empty, empty]
    losses = train_epoch(model, mixed, masked_mse, optimizer, n=2, weight=tokens, scheduler=scheduler)
    assert len(losses) == len(steps) == 1
    assert scheduler.get_last_lr() == [0.05]


def test_a_weight_that_is_always_0_is_an_error(model, batches):
    with pytest.raises(ValueError, match=r"weight\(batch\) 0 for every micro-batch"):
        evaluate(model, batches, masked_mse, weight=lambda batch: 0)
    with pytest.raises(ValueError, match=r"weight\(batch\) 0 for every micro-batch"):
        train_epoch(model, batches, masked_mse, sgd(model.parameters()), weight=lambda batch: 0)


# Clipping


def test_clipping_is_over_the_parameters_of_the_optimizer_together(model, batches):
    head = list(model[2].parameters())
    optimizer = torch.optim.SGD([{"params": head[:1]}, {"params": head[1:]}], lr=0.1)
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(float(nn.utils.get_total_norm([p.grad for p in head]))))
    train_epoch(model, batches, masked_mse, optimizer, n=100, weight=tokens, max_norm=0.1)
    assert math.isclose(norms[0], 0.1, rel_tol=1e-4)


# Arguments that cannot be used


@pytest.mark.parametrize(
    ("options", "error", "saying"),
    [
        ({"max_norm": 0}, ValueError, "max_norm must be a positive number, got 0"),
        ({"max_norm": -1.0}, ValueError, "got -1.0"),
        ({"max_norm": math.nan}, ValueError, "got nan"),
        ({"autocast": torch.bfloat16}, TypeError, r"autocast must be .*, got torch.bfloat16 \(dtype\)"),
        ({"autocast": True}, TypeError, r"got True \(bool\)"),
        ({"scaler": True}, TypeError, r"scaler must be a GradScaler, got True \(bool\)"),
        ({"scaler": 1024.0}, TypeError, r"got 1024.0 \(float\)"),
        ({"max_norm": True}, TypeError, r"max_norm must be a number, got True \(bool\)"),
        ({"max_norm": "1"}, TypeError, r"got '1' \(str\)"),
        ({"scheduler": "cosine"}, TypeError, r"scheduler must be an LRScheduler, got 'cosine' \(str\)"),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error_before_anything_changes(model, batches, options, error, saying):
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=saying):
        train_epoch(model, batches, masked_mse, sgd(model.parameters()), n=2, weight=tokens, **options)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all((p.grad == 7).all() for p in model.parameters())


def test_a_schedule_that_needs_a_metric_is_an_error_that_says_what_to_do(model, batches):
    optimizer = sgd(model.parameters())
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau needs a metric .* step\(metric\) after evaluate"):
        train_epoch(model, batches, masked_mse, optimizer, weight=tokens, scheduler=ReduceLROnPlateau(optimizer))


def unchanged_after(model, batches, optimizer, error, saying, **options):
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=saying):
        train_epoch(model, batches, masked_mse, optimizer, n=2, weight=tokens, **options)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all((p.grad == 7).all() for p in model.parameters())


def test_a_scheduler_of_another_optimizer_is_an_error(model, batches):
    other = ExponentialLR(sgd(model.parameters()), 0.5)
    unchanged_after(
        model, batches, sgd(model.parameters()), ValueError, "belongs to another optimizer", scheduler=other
    )
    assert other.get_last_lr() == [0.1]


def test_chained_and_sequential_schedulers_belong_to_their_optimizer(model, batches):
    optimizer = sgd(model.parameters())
    parts = [ExponentialLR(optimizer, 0.5), ExponentialLR(optimizer, 0.1)]
    train_epoch(model, batches, masked_mse, optimizer, 3, tokens, scheduler=ChainedScheduler(parts))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.05**3)
    in_turn = SequentialLR(optimizer, parts, milestones=[2])
    train_epoch(model, batches, masked_mse, optimizer, 3, tokens, scheduler=in_turn)
    assert in_turn.last_epoch == 3


def test_an_optimizer_of_another_model_is_an_error(model, batches):
    optimizer = sgd(mlp(3, 5, 2).parameters())
    unchanged_after(model, batches, optimizer, ValueError, "none of the optimizer's parameters belongs to the model")


@pytest.mark.parametrize("optimizer", [lambda p: torch.optim.LBFGS(p), lambda p: None, lambda p: "SGD"])
def test_an_optimizer_that_cannot_step_alone_is_an_error(model, batches, optimizer):
    unchanged_after(model, batches, optimizer(model.parameters()), TypeError, "steps without a closure")


@pytest.mark.parametrize("scaled", [False, True])
def test_a_window_whose_loss_reaches_no_parameter_of_the_optimizer_is_an_error_after_which_all_can_be_used(
    model, batches, scaled
):
    optimizer, scaler = sgd(model[2].parameters()), GradScaler("cpu") if scaled else None
    with pytest.raises(ValueError, match="reached no parameter of the optimizer"):
        train_epoch(
            model, batches, lambda model, batch: model[0](batch["x"]).mean(), optimizer, 2, tokens, scaler=scaler
        )
    assert len(train_epoch(model, batches, masked_mse, optimizer, 2, tokens, scaler=scaler)) == 5


class SAM(torch.optim.SGD):
    """Sharpness-aware minimisation, as it is published: two steps, and a closure that only seems to be optional."""

    def step(self, closure=None):
        assert closure is not None, "SAM requires a closure"

    def first_step(self): ...

    def second_step(self): ...


def test_sam_is_refused_before_the_first_forward_pass(model, batches):
    optimizer = SAM(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="steps without a closure, got SAM"):
        train_epoch(model, batches, lambda *_: pytest.fail("a forward pass"), optimizer, 2, tokens)


def test_clipping_sparse_gradients_is_refused_before_the_first_forward_pass():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="max_norm can't clip sparse gradients: build the embedding with sparse=False"):
        train_epoch(model, [torch.tensor([1])], lambda *_: pytest.fail("a forward pass"), optimizer, max_norm=1.0)
    model[0].weight.requires_grad_(False)  # it has no gradient then
    train_epoch(model, [torch.tensor([1])], lambda model, x: model(x).mean(), optimizer, max_norm=1.0)


# What on_update is told


@pytest.mark.parametrize("scaled", [False, True])
def test_each_window_is_told_once_after_its_update(model, batches, scaled):
    optimizer = sgd(model.parameters())
    norms = []
    optimizer.register_step_pre_hook(
        lambda *_: norms.append(float(nn.utils.get_total_norm(p.grad for p in model.parameters())))
    )
    told = []

    def note(update):
        assert not any(p.grad is not None and p.grad.any() for p in model.parameters())
        told.append(update)

    batches = [batches[0], batches[1], {**batches[0], "y": batches[0]["y"] + math.inf}, batches[1], batches[1]]
    with pytest.warns(RuntimeWarning, match="1 of 3 windows"):
        losses = train_epoch(
            model, batches, masked_mse, optimizer, 2, tokens, max_norm=100.0,
            scaler=GradScaler("cpu") if scaled else None, scheduler=ExponentialLR(optimizer, 0.5), on_update=note,
        )  # fmt: skip
    assert [update.number for update in told] == [1, 2, 3]
    assert [update.micro_batches for update in told] == [2, 2, 1]
    assert [update.skipped for update in told] == [False, True, False]
    assert [update.lr for update in told] == [[0.1], [0.05], [0.05]]
    assert [update.loss for update in told] == pytest.approx(losses, nan_ok=True)
    assert [told[0].norm, told[2].norm] == pytest.approx(norms)
    assert not math.isfinite(told[1].norm)


def test_the_norm_is_told_before_clipping(model, batches):
    told = []
    train_epoch(model, batches, masked_mse, sgd(model.parameters()), 4, tokens, max_norm=1e-3, on_update=told.append)
    assert all(update.norm > 0.01 for update in told)


def test_the_learning_rate_that_is_told_is_the_one_of_the_update(model, batches):
    optimizer, told = sgd(model.parameters()), []
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)  # a scheduler writes into it
    scheduler = ExponentialLR(optimizer, 0.5)
    train_epoch(model, batches, masked_mse, optimizer, 4, tokens, scheduler=scheduler, on_update=told.append)
    assert [update.lr for update in told] == [[pytest.approx(0.1 * 0.5**k)] for k in range(len(told))]


def test_an_on_update_that_is_no_function_is_an_error(model, batches):
    unchanged_after(model, batches, sgd(model.parameters()), TypeError, "on_update must be a function", on_update=1)


# Gradients of parameters that the optimizer does not own


def test_gradients_that_the_optimizer_does_not_own_are_zeroed_with_the_others(model, batches):
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(model[0].weight.grad.norm().item()))
    expected = []
    for _ in range(2):
        for window in windows(batches, 4):
            (gradient,) = torch.autograd.grad(masked_mse(model, joined(window)), [model[0].weight])
            expected.append(gradient.norm().item())
            train_epoch(model, window, masked_mse, optimizer, 4, tokens)
    assert norms == pytest.approx(expected, rel=1e-12)
    assert [p.grad for p in model.parameters()] == [None] * 4


def test_gradients_outside_of_model_and_optimizer_are_left_to_their_owner(batches):
    """A generator is trained through a discriminator: the gradients of the latter are not this loop's to zero."""
    torch.set_default_dtype(torch.float64)
    generator, discriminator = mlp(3, 5, 2), mlp(2, 1)
    train_epoch(
        generator, batches, lambda model, batch: discriminator(model(batch["x"])).mean(), sgd(generator.parameters())
    )
    assert all(p.grad is not None for p in discriminator.parameters())
    assert all(p.grad is None for p in generator.parameters())


def test_one_process_also_trains_parameters_that_its_optimizer_owns_outside_the_model():
    torch.set_default_dtype(torch.float64)
    model, temperature = nn.Linear(2, 1), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    train_epoch(model, [torch.ones(3, 2)], lambda model, x: model(x).mean() + temperature, optimizer)
    assert temperature.item() == pytest.approx(0.9)


def test_any_context_can_be_the_autocast(model, batches):
    train_epoch(model, batches[:2], masked_mse, sgd(model.parameters()), weight=tokens, autocast=nullcontext())
