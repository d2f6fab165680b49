"""MicroBatchFinder: a window that ran out of memory gives the update that it would have given."""

import copy
import gc
from collections import UserDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from reference import mse
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F

from course_utils import Tally, mlp, saved_bytes, train_epoch, windows
from course_utils.loops import MicroBatchFinder
from course_utils.loops.fit import pieces

RAGGED = (8, 8, 5, 8, 3)


@pytest.fixture
def batches():
    torch.set_default_dtype(torch.float64)
    return [(torch.randn(items, 3), torch.randn(items, 2)) for items in RAGGED]


class Full:
    """A card that is full: more than `most` items run out of memory, forward or backward."""

    def __init__(self, model, most, where="forward"):
        self.most, self.calls = most, 0
        if where == "forward":
            model.register_forward_pre_hook(lambda module, args: self.ask(len(args[0])))
        else:  # in the middle of a backward: the last layer has its gradient, the first one not yet
            model[1].register_full_backward_pre_hook(lambda module, gradients: self.ask(len(gradients[0])))

    def ask(self, items):
        self.calls += 1
        if items > self.most:
            raise torch.OutOfMemoryError(f"tried to allocate room for {items} items")


def trained(batches, finder, full=None, make_model=lambda: mlp(3, 5, 2)):
    torch.manual_seed(1)
    model = make_model()
    if full:
        Full(model, *full)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for window in windows(batches, 2):
        losses.append(finder.backward_window(model, window, mse).item())
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()], losses


def assert_near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(("most", "found"), [(1, 1), (3, 2), (7, 4), (8, None)])
def test_training_that_ran_out_of_memory_is_the_training_that_did_not(batches, most, found, where):
    torch.manual_seed(1)
    model = mlp(3, 5, 2)
    losses = train_epoch(model, batches, mse, torch.optim.AdamW(model.parameters(), lr=0.01), n=2)
    finder = MicroBatchFinder()
    survived, theirs = trained(batches, finder, full=(most, where))
    assert_near(survived, model.parameters())
    assert theirs == pytest.approx(losses, abs=1e-12)
    assert finder.micro_batch == found


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, batch):
        return self.scores.expand(*batch.shape, 6)


def test_pieces_are_weighted_by_their_tokens_and_those_without_any_are_left_out(batches):
    def loss_fn(model, batch):
        return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), ignore_index=-100)

    targets = torch.tensor([[1, 2, 3], [4, -100, -100], [-100, -100, -100], [0, -100, 5]])
    model, whole, finder = Scores(), Scores(), MicroBatchFinder()
    Full(model, 1)
    loss = finder.backward_window(model, [targets], loss_fn, weight=lambda batch: (batch != -100).sum())
    expected = loss_fn(whole, targets)
    expected.backward()
    assert_near([model.scores.grad, loss], [whole.scores.grad, expected.detach()])


def test_where_one_item_does_not_fit_it_gives_up_and_says_so():
    def two_fit_but_not_the_third(model, batch):
        if 2 in batch:
            raise torch.OutOfMemoryError("a long one")
        return model(batch).mean()

    tally = Tally(4)
    with pytest.raises(torch.OutOfMemoryError, match=r"one item does not fit.*a long one"):
        MicroBatchFinder().backward_window(tally, [torch.arange(4)], two_fit_but_not_the_third)
    assert tally.weight.grad is None
    assert torch.equal(tally.weight, torch.zeros(4))


def test_the_activations_that_did_not_fit_are_gone_before_the_next_try():
    model, held = mlp(4, 50, 50, 1), []
    with saved_bytes(model) as saved:

        def fails_after_its_forward(model, batch):
            held.append(saved.now)
            loss = model(batch).mean()
            if len(batch) > 4:
                raise torch.OutOfMemoryError("full")
            return loss

        gc.disable()  # not even a cycle may keep them
        try:
            MicroBatchFinder().backward_window(model, [torch.zeros(8, 4), torch.zeros(8, 4)], fails_after_its_forward)
        finally:
            gc.enable()
    assert held == [0] * 5


def test_the_scaler_has_seen_nothing(batches):
    scaler, model = GradScaler("cpu", init_scale=2.0**10, growth_interval=1000), mlp(3, 5, 2)
    plain = copy.deepcopy(model)
    Full(model, 3, "backward")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = MicroBatchFinder().backward_window(model, batches[:2], mse, scaler=scaler)
    scaler.unscale_(optimizer)  # would refuse if it had been called before
    expected = MicroBatchFinder().backward_window(plain, batches[:2], mse)
    assert_near([loss, *(p.grad for p in model.parameters())], [expected, *(p.grad for p in plain.parameters())])
    scaler.step(optimizer)
    scaler.update()
    assert (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]) == (2.0**10, 1)


def test_random_numbers_are_drawn_as_if_nothing_had_happened(batches):
    def noisy():
        return nn.Sequential(nn.Linear(3, 5), nn.Dropout(), nn.Linear(5, 2))

    survived, _ = trained(batches, MicroBatchFinder(), full=(3, "backward"), make_model=noisy)
    after = torch.rand(1)
    knowing, _ = trained(batches, MicroBatchFinder(micro_batch=2), make_model=noisy)
    assert all(map(torch.equal, [*survived, after], [*knowing, torch.rand(1)]))


@pytest.mark.parametrize("before", [None, 7.0])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_parameter_outside_the_model_keeps_nothing_of_the_half_window(batches, where, before):
    model, temperature = mlp(3, 5, 2), torch.tensor(2.0, requires_grad=True)

    def loss_fn(model, batch):
        return mse(model, batch) * temperature

    for full in (8, 3):
        model.zero_grad()
        temperature.grad = None if before is None else torch.tensor(before)
        if full == 3:
            Full(model, full, where)
        MicroBatchFinder().backward_window(model, [batches[4], batches[0]], loss_fn)
        if full == 8:
            expected = temperature.grad
    assert temperature.grad.item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize(
    ("batch", "use"),
    [
        (torch.ones(8, 3), lambda x: x.mul_(0.5)),
        (torch.from_numpy(np.ones((8, 3))), lambda x: torch.from_numpy(np.multiply(x, 0.5, out=x.numpy()))),
        ({"x": torch.ones(8, 3)}, lambda batch: batch["x"].mul_(0.5)),
        ([torch.ones(8, 3)], lambda batch: batch.pop()),
    ],
)
def test_a_window_whose_forward_pass_wrote_to_its_input_is_not_run_again(batch, use):
    model = nn.Linear(3, 2)
    Full(model, 4, "forward")

    def loss_fn(model, batch):
        return model(use(batch).float()).mean()

    with pytest.raises(ValueError, match=r"has written to its input: write to a copy"):
        MicroBatchFinder().backward_window(model, [batch], loss_fn, lambda batch: 8)
    assert all(p.grad is None for p in model.parameters())


def test_a_batch_that_is_moved_to_a_device_in_place_can_run_again():
    model, finder, batch = nn.Linear(3, 2), MicroBatchFinder(), Encoding(x=torch.ones(8, 3))
    Full(model, 4)
    finder.backward_window(model, [batch], lambda model, batch: model(batch.to("cpu")["x"]).mean())
    assert finder.micro_batch == 4


def test_other_errors_are_not_survived():
    finder = MicroBatchFinder()
    with pytest.raises(ZeroDivisionError):
        finder.backward_window(Tally(2), [torch.arange(2)], lambda model, batch: 1 / 0)
    assert finder.micro_batch is None


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Encoding(UserDict):
    """Like a batch of transformers: a mapping that is no dict, with its entries as attributes."""

    def __getattr__(self, name):
        return self.data[name]

    def to(self, device):
        self.data = {name: x.to(device, copy=True) for name, x in self.data.items()}
        return self


def test_pieces_are_of_the_class_of_their_batch():
    x = torch.arange(5)
    for batch in (Pair(x, x + 1), Encoding(x=x, y=x + 1)):
        parts = pieces(batch, 3)
        assert [(type(part), part.y.tolist()) for part in parts] == [(type(batch), [1, 2, 3]), (type(batch), [4, 5])]
    assert [part["mask"] for part in pieces({"x": x, "mask": None}, 2)] == [None, None, None]


@pytest.mark.parametrize("batch", ["text", (torch.zeros(3), torch.zeros(4)), (torch.zeros(3), "text"), (), (None,)])
def test_what_cannot_be_cut_says_so(batch):
    with pytest.raises(TypeError, match=r"cannot split a (str|tuple): pass split="):
        pieces(batch, 2)
