"""The loops: each update is that of one large batch, and what cannot be right is an error."""

import copy
from collections import UserDict
from contextlib import nullcontext
from itertools import islice

import pytest
import torch
from reference import mse, sgd
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from course_utils import evaluate, mlp, train_epoch, windows
from course_utils.loops import items

RAGGED = (4, 2, 1, 3, 2, 4, 1)  # 7 micro-batches: a short tail for N = 2, 3, 4, 5 and 100


@pytest.fixture
def model():
    torch.set_default_dtype(torch.float64)
    return mlp(3, 5, 2)


@pytest.fixture
def batches(model):
    return [(torch.randn(size, 3), torch.randn(size, 2)) for size in RAGGED]


def assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


# windows


@pytest.mark.parametrize(("n", "lengths"), [(1, [1] * 10), (4, [4, 4, 2]), (5, [5, 5]), (10**9, [10])])
def test_windows_hold_n_micro_batches_and_the_last_one_the_rest(n, lengths):
    found = list(windows(range(10), n))
    assert [len(window) for window in found] == lengths
    assert sum(found, []) == list(range(10))  # noqa: RUF017


@pytest.mark.parametrize("n", [1, 4, 5])
def test_a_loader_that_starts_again_after_its_end_is_gone_through_once(n):
    class Restarting:
        """An iterator like those of some loaders on a GPU: reset by its own end."""

        left = ()

        def __iter__(self):
            return self

        def __next__(self):
            first, *self.left = self.left or [*range(10), None]
            if first is None:
                raise StopIteration
            return first

    found = list(islice(windows(Restarting(), n), 20))
    assert sum(found, []) == list(range(10))  # noqa: RUF017


# items


class Fields(UserDict):
    """Like the batches of transformers: a mapping that is no dict."""


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(3),
        (torch.zeros(3, 2), torch.zeros(3), None, "train"),
        {"inputs": torch.zeros(3, 2), "mask": torch.zeros(3, dtype=torch.bool)},
        {"inputs": {"ids": torch.zeros(3, 2)}, "names": ["a", "b", "c"]},
        Fields(inputs=torch.zeros(3, 2), labels=torch.zeros(3)),
        (Fields(inputs=torch.zeros(3, 2)), torch.zeros(3)),
        [[torch.zeros(3, 2), torch.zeros(3, 2)], torch.zeros(3)],  # two views and their labels
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(5), torch.zeros(1)], layout=torch.jagged),
    ],  # made in the test: it imports torch._dynamo
)
def test_items_are_the_first_dimension_in_which_all_tensors_agree(batch):
    assert items(batch() if callable(batch) else batch) == 3


IMAGE = torch.zeros(3, 8, 8)


@pytest.mark.parametrize(
    "batch",
    [
        ((IMAGE,) * 8, (torch.tensor(1),) * 8),  # detection: 8 images of 3 channels
        ({"image": IMAGE}, {"mask": IMAGE}),
        {"images": [IMAGE] * 8},
        [torch.zeros(7), torch.zeros(5), torch.zeros(2)],  # sequences of different lengths
        pack_sequence([torch.zeros(7, 2)]),
        (torch.zeros(16, 3, 2), torch.zeros(3)),  # sequence-first
        (torch.zeros(3, 2), torch.tensor(1.0)),
    ],
)
def test_a_batch_that_can_be_read_in_two_ways_is_refused_with_its_shapes(model, batch):
    with pytest.raises(TypeError, match=r"tensors of shapes \(.*: pass weight=") as refused:
        items(batch)
    assert len(str(refused.value)) < 300
    with pytest.raises(TypeError, match="pass weight="):
        train_epoch(model, [batch], lambda *_: pytest.fail("a forward pass"), sgd(model.parameters()))


@pytest.mark.parametrize("batch", ["text", None, (), [[]], torch.tensor(1.0), (torch.tensor(1.0),)])
def test_a_batch_whose_items_cannot_be_counted_asks_for_a_weight(batch):
    with pytest.raises(TypeError, match="pass weight="):
        items(batch)


# train_epoch


def test_training_starts_and_leaves_without_gradients_and_leaves_every_part_in_its_mode(model, batches):
    model[1].eval()
    modes = [module.training for module in model.modules()]
    clean = copy.deepcopy(model)
    mse(model, batches[0]).backward()
    train_epoch(model, batches, mse, sgd(model.parameters()), n=2)
    train_epoch(clean, batches, mse, sgd(clean.parameters()), n=2)
    assert_equal(model.parameters(), clean.parameters())
    assert [module.training for module in model.modules()] == modes
    assert [p.grad for p in model.parameters()] == [None] * 4


# evaluate. Its weights are in test_properties.py.


def test_evaluation_builds_no_graph_and_leaves_gradients_alone(model, batches):
    mse(model, batches[0]).backward()
    before = [p.grad.clone() for p in model.parameters()]

    def metric(model, batch):
        assert not mse(model, batch).requires_grad
        return mse(model, batch)

    evaluate(model, batches, metric)
    assert torch.is_grad_enabled()
    assert_equal([p.grad for p in model.parameters()], before)


def test_evaluation_keeps_the_numbers_of_a_metric_and_of_a_weight_that_reuse_their_tensors():
    result, count = torch.zeros(()), torch.zeros(())
    batches = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0])]
    found = evaluate(
        nn.Identity(), batches, lambda model, batch: result.copy_(batch.mean()), lambda batch: count.fill_(len(batch))
    )
    assert found == 3.0


class Merging(nn.Linear):
    """Like a LoRA layer: its train() adds its matrix to the weights for evaluation."""

    def __init__(self):
        super().__init__(3, 3, bias=False)
        self.extra, self.drop, self.calls = nn.Parameter(torch.eye(3)), nn.Dropout(), []

    def train(self, mode=True):
        super().train(mode)
        self.calls.append(mode)
        self.merged = not mode
        return self

    def forward(self, x):
        return super().forward(x) if self.merged else super().forward(x) + self.drop(x) @ self.extra


class Freezing(nn.Sequential):
    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("parent", [nn.Sequential, Freezing, lambda layer, *_: torch.compile(layer)])
@pytest.mark.parametrize("own_mode", [True, False])
def test_evaluation_calls_the_train_of_a_part_that_has_its_own(parent, own_mode, fails):
    layer = Merging()
    model = parent(layer, nn.BatchNorm1d(3), nn.Dropout()).train()
    layer.train(own_mode)
    layer.drop.eval()  # within it, in another mode than it
    modes = [module.training for module in model.modules()]
    layer.calls.clear()

    def metric(model, batch):
        assert layer.merged
        assert not any(module.training for module in model.modules())
        if fails:
            raise RuntimeError
        return batch.mean()

    with pytest.raises(RuntimeError) if fails else nullcontext():
        evaluate(model, [torch.ones(4, 3)], metric)
    assert [module.training for module in model.modules()] == modes
    assert layer.merged is not own_mode
    assert parent is Freezing or layer.calls == [False, True][: 1 + own_mode]
