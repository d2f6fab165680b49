"""plan_memory predicts the peak that the allocator reports; allocated reports that peak."""

import json
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils import data, mlp, plan_memory, train_epoch
from course_utils.memory import allocated
from course_utils.models import Transformer

GIB = 2**30
SYMBOLS, PLACES = 500, 64


planned = cache(plan_memory)  # several tests ask the same plan


def classified(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def written(model, batch):
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def points(items):
    return torch.randn(items, 256), torch.randint(10, (items,))


def pictures(items):
    return torch.randn(items, 3, 32, 32), torch.randint(10, (items,))


def texts(items):
    return torch.randint(SYMBOLS, (items, PLACES)), torch.randint(SYMBOLS, (items, PLACES))


def convnet():
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 64, 10)),
    )


def transformer(checkpointed=False):
    return Transformer(SYMBOLS, width=128, heads=4, blocks=2, longest=PLACES, checkpointed=checkpointed)


def adamw(weights):
    return torch.optim.AdamW(weights, lr=1e-3)


def adamw_of_a_gpu(weights):
    return torch.optim.AdamW(weights, lr=1e-3, foreach=True)


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1)


def embedding():
    return nn.Sequential(nn.Embedding(SYMBOLS, 256), nn.Linear(256, SYMBOLS))


TRAININGS = {
    "mlp": (lambda: mlp(256, 512, 512, 10), points, classified, (1, 64, 256)),
    "convnet": (convnet, pictures, classified, (4, 16, 24)),
    "transformer": (transformer, texts, written, (1, 2, 6)),
    "checkpointed": (lambda: transformer(checkpointed=True), texts, written, (1, 2, 6)),
    "embedding": (embedding, texts, written, (1, 8, 32)),
}


def peak_of_training(build, make_batch, loss_fn, optimizer, items, n=2):
    """What the allocator gave to two updates: the second one finds the optimizer's state."""
    torch.set_num_threads(1)  # kernels have scratch space for each thread
    with allocated() as memory:
        model = build()
        train_epoch(model, [make_batch(items)] * 2 * n, loss_fn, optimizer(model.parameters()), n=n)
    return memory.peak


@pytest.mark.parametrize("name", TRAININGS)
def test_the_peak_is_the_allocators(name):
    *training, sizes = TRAININGS[name]
    found = planned(*training, adamw)
    for items in sizes:
        assert found.peak(items) == pytest.approx(peak_of_training(*training, adamw, items), rel=0.01)


@pytest.mark.parametrize("optimizer", [adamw_of_a_gpu, sgd, torch.optim.Adagrad])
def test_with_other_optimizers_the_peak_is_the_allocators_too(optimizer):
    *training, sizes = TRAININGS["mlp"]
    found = planned(*training, optimizer)
    for items in sizes:
        assert found.peak(items) == pytest.approx(peak_of_training(*training, optimizer, items), rel=0.01)


def test_the_largest_micro_batch_fits_and_one_more_item_does_not():
    found = planned(*TRAININGS["mlp"][:3], adamw_of_a_gpu)
    for card in (2**24, 2**26, 2**28):
        largest = found.largest(card)
        assert found.peak(largest) <= card < found.peak(largest + 1)
        assert found.n_for(largest, card) == 1
        assert found.n_for(largest + 1, card) == 2
        assert found.n_for(10 * largest - 1, card) == 10


def test_if_not_even_one_item_fits_no_n_helps():
    found = planned(transformer, texts, written, adamw)
    card = found.peak(1) - 1
    assert found.largest(card) == 0
    with pytest.raises(ValueError, match="no N helps"):
        found.n_for(64, card)
    assert found.largest(card + 1) >= 1


def test_planning_for_seven_billion_weights_takes_almost_no_memory():
    def seven_billion():
        return Transformer(32_000, width=16_384, heads=32, blocks=2, longest=2048)  # few and wide: fewer operations

    def long_texts(items):
        return torch.randint(32_000, (items, 2048)), torch.randint(32_000, (items, 2048))

    with allocated() as memory:
        found = plan_memory(seven_billion, long_texts, written, adamw_of_a_gpu, dtype=torch.bfloat16)
    assert memory.peak < 2**20
    assert found.weights > 6.7e9 * 2
    assert found.fixed == pytest.approx(4 * found.weights, rel=1e-3)
    assert (found.phase(1), found.phase(64)) == ("step", "backward")
    assert found.peak(1) == pytest.approx(5 * found.weights, rel=1e-3)  # the square roots of all second moments at once
    assert found.largest(40 * GIB) == 0
    assert found.largest(80 * GIB) >= 1


def contrastive(model, batch):
    found = model(batch[0].repeat(500, 1))
    return (found @ found.T).logsumexp(1).mean()


def twice_if_large(model, batch):
    return sum(classified(model, batch) for _ in range(1 + (len(batch[0]) > 4)))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((lambda: mlp(256, 8), points, contrastive), ValueError, "not a straight line"),
        ((lambda: mlp(256, 8, 10), points, twice_if_large), ValueError, "different operations"),
        (
            (lambda: nn.LSTM(500, 8), lambda items: torch.randn(9, items, 500), lambda model, x: model(x)[0].mean()),
            NotImplementedError,
            "no plan is safe",
        ),
        ((mlp(256, 10), points, classified), TypeError, "a function that returns the model, got a Sequential itself"),
    ],
    ids=["each with every other", "operations that depend on the size", "LSTM", "no function"],
)
def test_what_cannot_be_trained_or_planned_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        plan_memory(*arguments)


def test_a_plan_in_which_nothing_grows_says_so():
    with pytest.raises(ValueError, match="nothing grows"):
        plan_memory(lambda: mlp(256, 10), lambda items: points(3), classified).largest(1e9)


def test_nothing_is_left_behind():
    plan_memory(convnet, pictures, classified, dtype=torch.float64)
    with pytest.raises(ZeroDivisionError):
        plan_memory(convnet, pictures, lambda model, batch: 1 / 0, dtype=torch.float64)
    assert torch.get_default_dtype() == torch.float32
    assert type(torch.zeros(1)) is torch.Tensor


# allocated


def test_the_allocators_peak_counts_what_exists_at_once():
    with allocated() as memory:
        x = torch.zeros(1000)
        y = torch.zeros(500)
        del x
        z = torch.zeros(900)
    assert memory.peak == 4 * 1500
    assert len(y) + len(z) == 1400


# what was measured


RECORDED = sorted((data.folder() / "measurements").glob("*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_recorded_peaks_are_those_of_the_plan(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))
    if "runs" not in recorded or "planned_bytes" not in recorded["runs"][0]:
        pytest.skip("another kind of measurement")
    for run in recorded["runs"]:
        assert run["micro_batch"] * run["n"] == recorded["effective_batch"]
        assert run["planned_bytes"] == pytest.approx(run["peak_bytes"], rel=0.1), run
