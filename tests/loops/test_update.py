"""What shares the update with the step: token weights, the scaler, clipping, the schedule, autocast; all at once."""

import math

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils import mlp, train_epoch
from on_ranks import masked_mse, shards, tokens


@pytest.fixture
def model():
    torch.set_default_dtype(torch.float64)
    return mlp(3, 5, 2)


@pytest.fixture
def batches(model):
    return shards(1)[0]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


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


@pytest.mark.parametrize("scaled", [False, True])
def test_a_window_whose_loss_reaches_no_parameter_of_the_optimizer_is_an_error_after_which_all_can_be_used(
    model, batches, scaled
):
    optimizer, scaler = sgd(model[2].parameters()), GradScaler("cpu") if scaled else None
    with pytest.raises(ValueError, match=r"no parameter of the optimizer has a gradient .* the loss reached none"):
        train_epoch(
            model, batches, lambda model, batch: model[0](batch["x"]).mean(), optimizer, 2, tokens, scaler=scaler
        )
    assert len(train_epoch(model, batches, masked_mse, optimizer, 2, tokens, scaler=scaler)) == 4


def test_an_optimizer_that_steps_inside_backward_is_named_as_a_cause(model, batches):
    optimizer = sgd(model.parameters())

    def use_at_once(p):
        p.data -= 0.1 * p.grad
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(use_at_once)
    with pytest.raises(ValueError, match=r"or a hook has used the gradients and cleared them inside backward\(\)"):
        train_epoch(model, batches, masked_mse, optimizer, 2, tokens)


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
