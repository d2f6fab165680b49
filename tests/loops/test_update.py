"""What shares the update with the step: token weights, scaler, clipping, schedule, autocast."""

import copy
import math
import weakref
from contextlib import nullcontext

import pytest
import torch
from reference import sgd
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils import backward_window, evaluate, mlp, train_epoch, windows
from on_ranks import masked_mse, shards, tokens


@pytest.fixture
def model():
    torch.set_default_dtype(torch.float64)
    return mlp(3, 5, 2)


@pytest.fixture
def batches(model):
    return shards(1)[0]


def test_the_forward_runs_under_autocast_and_the_backward_outside_of_it(model):
    seen = []

    def loss_fn(model, batch):
        out = model(batch)
        seen.append(torch.is_autocast_enabled("cpu"))
        out.register_hook(lambda _: seen.append(torch.is_autocast_enabled("cpu")))
        return out.mean()

    train_epoch(model, [torch.ones(1, 3)] * 3, loss_fn, sgd(model.parameters()), n=2, autocast=torch.autocast("cpu"))
    assert seen == [True, False] * 3


@pytest.mark.parametrize("scaled", [False, True])
def test_a_window_without_a_gradient_of_the_optimizer_is_an_error_after_which_all_can_be_used(model, batches, scaled):
    optimizer, scaler = sgd(model[2].parameters()), GradScaler("cpu") if scaled else None

    def use_at_once(p):
        p.data -= 0.1 * p.grad
        p.grad = None

    said = r"no parameter of the optimizer has a gradient .* reached none, or a hook has used .* inside backward\(\)"
    with pytest.raises(ValueError, match=said):
        train_epoch(
            model, batches, lambda model, batch: model[0](batch["x"]).mean(), optimizer, 2, tokens, scaler=scaler
        )
    hooks = [p.register_post_accumulate_grad_hook(use_at_once) for p in model.parameters()]
    with pytest.raises(ValueError, match=said):
        train_epoch(model, batches, masked_mse, optimizer, 2, tokens, scaler=scaler)
    for hook in hooks:
        hook.remove()
    assert len(train_epoch(model, batches, masked_mse, optimizer, 2, tokens, scaler=scaler)) == 4


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
    """A generator is trained through a discriminator, whose gradients this loop doesn't zero."""
    torch.set_default_dtype(torch.float64)
    generator, discriminator, temperature = mlp(3, 5, 2), mlp(2, 1), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*generator.parameters(), temperature], lr=0.1)

    def loss_fn(model, batch):
        return discriminator(model(batch["x"])).mean() + temperature

    train_epoch(generator, batches[:1], loss_fn, optimizer)
    assert all(p.grad is not None for p in discriminator.parameters())
    assert all(p.grad is None for p in (*generator.parameters(), temperature))
    assert temperature.item() == pytest.approx(0.9)  # the optimizer owns it, the model does not


# Autocast that is open around the loop keeps its copies of the weights until it closes.


@pytest.mark.parametrize("given", [None, torch.autocast("cpu", torch.bfloat16)], ids=["not given", "given"])
def test_an_update_is_seen_by_the_next_forward_pass_inside_an_open_autocast(given):
    torch.manual_seed(0)
    start = nn.Linear(3, 2)  # in float32, of which autocast keeps copies
    batches = [torch.randn(4, 3) for _ in range(6)]

    def loss_fn(model, x):
        return model(x).float().square().mean()

    def losses(around, autocast):
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with around:
            found = train_epoch(model, batches, loss_fn, optimizer, 2, autocast=autocast)
            for window in windows(batches, 2):
                found.append(float(backward_window(model, window, loss_fn, autocast=autocast)))
                optimizer.step()
                optimizer.zero_grad()
                with autocast or nullcontext():
                    found.append(evaluate(model, batches, loss_fn))
            return found

    expected = losses(nullcontext(), torch.autocast("cpu", torch.bfloat16))
    assert losses(torch.autocast("cpu", torch.bfloat16), given) == expected


# Optimizers that hold others


def sgd_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Muon(torch.optim.Optimizer):
    """Steps matrices itself and leaves the rest to an optimizer of its own."""

    def __init__(self, model, **options):
        parameters = list(model.parameters())
        super().__init__([p for p in parameters if p.dim() == 2], {"lr": 0.1})
        self.inner = torch.optim.SGD([p for p in parameters if p.dim() != 2], lr=0.1)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad
        self.inner.step()


class Prepared(torch.optim.Optimizer):
    """A wrapper that steps, or declines to, as a library's does while it accumulates."""

    def __init__(self, optimizer, steps=True):
        self.optimizer, self.steps = optimizer, steps

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        if self.steps:
            self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        if self.steps:
            self.optimizer.zero_grad(set_to_none)


class PreparedInPart(Prepared):
    @property
    def param_groups(self):
        return [{"params": super().param_groups[0]["params"][:1]}]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "wrap",
    [
        Muon,
        lambda model: Prepared(sgd_of(model)),
        lambda model: Prepared(Muon(model), torch.tensor(True)),
        lambda model: PreparedInPart(sgd_of(model)),
    ],
)
def test_an_optimizer_that_holds_another_makes_the_same_updates(model, batches, wrap, scaled):
    plain = copy.deepcopy(model)
    scaler = GradScaler("cpu", init_scale=8.0) if scaled else None
    poisoned = [*batches, {**batches[0], "y": batches[0]["y"] + math.inf}]
    for one, optimizer in ((model, wrap(model)), (plain, sgd_of(plain))):
        with pytest.warns(RuntimeWarning, match="1 of"):
            train_epoch(one, poisoned, masked_mse, optimizer, 3, tokens, max_norm=0.05, scaler=scaler)
    torch.testing.assert_close([*model.parameters()], [*plain.parameters()], rtol=1e-12, atol=1e-12)
    assert all(p.grad is None for p in model.parameters())


def test_an_optimizer_that_declines_to_step_is_noticed(model, batches):
    optimizer = Prepared(sgd_of(model), steps=False)
    with pytest.raises(ValueError, match=r"the step of Prepared made no update.* pass the optimizer that you made"):
        train_epoch(model, batches, masked_mse, optimizer, 2, tokens, on_update=lambda _: pytest.fail("told"))
    assert all(p.grad is None for p in model.parameters())


# Gradients whose squares overflow


@pytest.mark.parametrize(("parts", "max_norm"), [(1, 0.5), (16, math.inf)])
def test_a_finite_gradient_whose_norm_overflows_is_clipped_and_not_lost(parts, max_norm):
    torch.set_default_dtype(torch.float32)
    large = 2e19 / math.sqrt(parts)
    model = nn.ParameterList([nn.Parameter(torch.zeros(4)) for _ in range(parts)])
    optimizer, told = torch.optim.SGD(model.parameters(), lr=1.0), []

    def loss_fn(model, x):
        return (large * x * torch.cat(list(model))).sum()

    train_epoch(model, [torch.ones(1)], loss_fn, optimizer, max_norm=max_norm, on_update=told.append)
    updated = torch.cat(list(model)).double().norm().item()
    assert updated == pytest.approx(min(max_norm, 4e19), rel=1e-6)
    assert told[0].norm == pytest.approx(4e19, rel=1e-6)
    assert not told[0].skipped


# Parameters that come later


class Grows(nn.Module):
    """Makes a parameter in its first forward pass, which its optimizer doesn't own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.ones(2))
        return self.layer(x) * self.late


def test_a_parameter_born_in_a_forward_pass_is_zeroed_with_the_others():
    model, seen = Grows(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.late.grad.clone()))
    train_epoch(model, [torch.ones(4, 3)] * 6, lambda model, x: model(x).sum(), optimizer, 2)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert model.late.grad is None


# Padding


@pytest.mark.parametrize(
    ("targets", "options", "warns"),
    [
        (torch.tensor([1, -100, 0]), {}, True),
        (torch.tensor([1, -100, 0]), {"weight": lambda batch: (batch[1] != -100).sum()}, False),
        (torch.tensor([1.0, -100.0, 0.0]), {}, False),
        (torch.tensor([1, 2, 0]).to_sparse(), {}, False),
    ],
)
def test_padded_targets_that_are_counted_as_samples_draw_one_warning(recwarn, targets, options, warns):
    model, batches = nn.Linear(3, 3), [(torch.randn(3, 3), targets)] * 5

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1].to_dense().long())

    train_epoch(model, batches, loss_fn, sgd(model.parameters()), 2, **options)
    backward_window(model, batches, loss_fn, **options)
    said = [str(warning.message) for warning in recwarn if warning.filename == __file__]
    assert len(said) == 2 * warns  # one of each loop
    assert all('weight=lambda batch: (batch["labels"] != -100).sum()' in sentence for sentence in said)


# After an error


def test_an_error_leaves_no_half_window_behind(model, batches):
    """Errors at other places in `train_epoch` are in test_properties.py."""
    outside = nn.Parameter(torch.ones(()))

    def loss_fn(model, batch):
        return masked_mse(model, batch) * (outside if batch is not batches[3] else 1 / 0)

    for end, on_update in ((3, lambda _: 1 / 0), (4, None)):
        optimizer = sgd([*model.parameters(), outside])
        with pytest.raises(ZeroDivisionError):
            train_epoch(model, batches[:end], loss_fn, optimizer, 2, tokens, on_update=on_update)
        assert [p.grad for p in (*model.parameters(), outside)] == [None] * 5
    with pytest.raises(ZeroDivisionError):
        backward_window(model, batches, loss_fn, tokens)
    assert [p.grad for p in model.parameters()] == [None] * 4


def test_the_inputs_of_a_window_are_freed_before_the_next_ones_are_fetched(model):
    alive, most = [], []

    def loader():
        for _ in range(6):
            most.append(sum(ref() is not None for ref in alive))
            batch = torch.randn(4, 3)
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    train_epoch(model, loader(), lambda model, x: model(x).mean(), sgd(model.parameters()), 2)
    assert max(most) == 1
