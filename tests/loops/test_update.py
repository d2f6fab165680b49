"""What shares the update with the step: token weights, the scaler, clipping, the schedule, autocast; all at once."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, ReduceLROnPlateau, SequentialLR

from course_utils import evaluate, mlp, train_epoch

LENGTHS = ([5, 1], [2], [9, 3, 1], [1], [4, 4], [7], [0, 0], [2, 8, 1], [1])  # valid tokens of each sequence


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


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# Autocast


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


def test_a_weight_that_is_always_0_is_an_error(model, batches):
    with pytest.raises(ValueError, match=r"weight\(batch\) 0 for every micro-batch"):
        evaluate(model, batches, masked_mse, weight=lambda batch: 0)
    with pytest.raises(ValueError, match=r"weight\(batch\) 0 for every micro-batch"):
        train_epoch(model, batches, masked_mse, sgd(model.parameters()), weight=lambda batch: 0)


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
        ({"on_update": 1}, TypeError, "on_update must be a function"),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error_before_anything_changes(model, batches, options, error, saying):
    unchanged_after(model, batches, sgd(model.parameters()), error, saying, **options)


def test_a_schedule_that_needs_a_metric_is_an_error_that_says_what_to_do(model, batches):
    optimizer = sgd(model.parameters())
    says = r"ReduceLROnPlateau needs a metric .* step\(metric\) after evaluate"
    unchanged_after(model, batches, optimizer, TypeError, says, scheduler=ReduceLROnPlateau(optimizer))


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
