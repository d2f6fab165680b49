"""A gradient with an infinity or a NaN makes no update and no scheduler step."""

import math
from functools import cache, partial
from itertools import product

import pytest
import torch
from torch.amp import GradScaler
from torch.overrides import TorchFunctionMode

import exhaustive
import on_ranks
from course_utils import mlp, train_epoch
from course_utils.ranks import Ranks

N = 3
WHY = "the norm of their gradients was infinite or NaN"
POISONS = [math.inf, math.nan, "gradient only"]
LOOPS = ["none", "disabled", "enabled"]
STEPS = [False, True]
every_loop = pytest.mark.parametrize("scaler", LOOPS)
every_step = pytest.mark.parametrize("fused", STEPS, ids=["unfused", "fused"])
every_poison = pytest.mark.parametrize("poison", POISONS)


@pytest.fixture(scope="module")
def groups():
    with Ranks(2, timeout=60) as two, Ranks(4, timeout=60) as four:
        yield {2: two, 4: four}


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)


@cache
def without_window(world, skipped, equal=False):
    """One process trained on large batches, of which one is left out."""
    batches = list(on_ranks.large_batches(world, N, equal))
    left = batches[:skipped] + batches[skipped + 1 :]
    losses, weights, lr, _ = on_ranks.train_poisoned(on_ranks.new_model(), left, 1, "none", False)
    return losses, weights, lr, len(batches)


def compare(ours, world, position, poison, equal=False):
    losses, weights, lr, warned = ours
    skipped = position // N
    their_losses, their_weights, their_lr, number = without_window(world, skipped, equal)
    assert warned == [f"1 of {number} windows made no update: {WHY}"]
    assert math.isfinite(losses.pop(skipped)) == (poison == "gradient only")
    assert losses == pytest.approx(their_losses, rel=1e-12)
    assert lr == their_lr == 0.1 * 0.5 ** (number - 1)
    torch.testing.assert_close(weights, their_weights, rtol=1e-12, atol=1e-12)


@every_loop
@every_step
@every_poison
def test_in_one_process_at_every_position(scaler, fused, poison):
    batches = on_ranks.shards(1)[0]
    tried = 0
    for position, batch in enumerate(batches):
        if on_ranks.tokens(batch):
            with_poison = [*batches[:position], on_ranks.poisoned(batch, poison), *batches[position + 1 :]]
            ours = on_ranks.train_poisoned(on_ranks.new_model(), with_poison, N, scaler, fused)
            compare(ours, 1, position, poison)
            tried += 1
    assert tried == 7


@pytest.mark.parametrize(
    ("scaler", "fused", "poison"),
    exhaustive.mark(
        product(LOOPS, STEPS, POISONS),  # of each kind, one case runs always
        but=[("none", False, math.inf), ("disabled", True, "gradient only"), ("enabled", True, math.inf)],
    ),
)
def test_on_two_ranks_at_every_position_of_each_also_where_a_rank_has_run_out(groups, scaler, fused, poison):
    for results in groups[2].run(on_ranks.poisoned_at, "DDP", N, scaler, fused, poison):
        for (rank, position), ours in results.items():
            if on_ranks.tokens(on_ranks.shards(2)[rank][position]):
                compare(ours, 2, position, poison)
            else:
                assert ours[3] == []


@pytest.mark.parametrize(
    ("kind", "world", "scaler", "poison"),
    exhaustive.mark(
        [(*kind, *how) for kind in (("FSDP2", 2), ("HSDP", 4)) for how in product(LOOPS[::2], POISONS[::2])],
        but=[("FSDP2", 2, "none", "gradient only"), ("HSDP", 4, "enabled", math.inf)],
    ),
)
def test_shards_agree_although_only_some_of_them_hold_a_nan(groups, kind, world, scaler, poison):
    positions = [(0, 0), (world - 1, 5), (world - 1, 6)]  # a window each
    for results in groups[world].run(on_ranks.poisoned_at, kind, N, scaler, False, poison, positions):
        assert list(results) == positions
        for (_, position), ours in results.items():
            compare(ours, world, position, poison, equal=True)


@every_step
def test_an_overflow_in_the_first_window_leaves_no_optimizer_state_behind(fused):
    """torch allocates the momentum of a fused step and may not write it (LibreYOLO#771)."""
    model = mlp(3, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    batch = on_ranks.poisoned(on_ranks.shards(1)[0][0], math.inf)
    with pytest.raises(FloatingPointError, match=f"1 of 1 windows made no update: {WHY}, and the first loss was nan"):
        train_epoch(model, [batch], on_ranks.masked_mse, optimizer, 1, on_ranks.tokens, scaler=GradScaler("cpu"))
    assert not optimizer.state


@pytest.mark.parametrize(("poison", "loss"), [(math.nan, "nan"), ("gradient only", r"\d")])
@every_loop
def test_an_epoch_in_which_every_window_was_skipped_is_an_error_with_the_first_loss(poison, loss, scaler):
    batches = [on_ranks.poisoned(batch, poison) for batch in on_ranks.shards(1, equal=True)[0]]
    train = partial(on_ranks.train_poisoned, on_ranks.new_model(), batches, 3, scaler, False)
    if scaler == "enabled" and poison == "gradient only":  # the scaler may still find its scale
        assert train()[3] == [f"3 of 3 windows made no update: {WHY}"]
    else:
        with pytest.raises(FloatingPointError, match=f"3 of 3 .*: {WHY}, and the first loss was {loss}"):
            train()


def test_only_gradients_of_the_optimizer_count():
    model = mlp(3, 5, 2)
    model[0].weight.register_hook(lambda gradient: gradient * math.nan)
    optimizer, before = torch.optim.SGD(model[2].parameters(), lr=0.1), model[2].weight.detach().clone()
    train_epoch(model, on_ranks.shards(1)[0], on_ranks.masked_mse, optimizer, 2, on_ranks.tokens)
    assert 0 < (model[2].weight - before).abs().max() < math.inf


class Waits(TorchFunctionMode):
    """Counts what would make the host wait for a GPU: reading numbers of tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in ("item", "tolist", "__float__", "__bool__", "__int__")
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("scaler", [None, GradScaler("cpu")], ids=["no scaler", "scaler"])
@pytest.mark.parametrize(("weight", "each"), [(lambda batch: 4, 1), (on_ranks.tokens, 2)], ids=["numbers", "tensors"])
@every_step
def test_the_host_waits_once_per_window_and_once_more_where_weights_are_tensors(
    scaler, weight, each, fused, monkeypatch
):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)  # on a CPU there is nothing to wait for
    model, seen = mlp(3, 5, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    optimizer.register_step_pre_hook(lambda *_: seen.append(counter.count))
    batches = [batch for batch in on_ranks.shards(1, equal=True)[0][:4] for _ in range(4)]
    with Waits() as counter:
        train_epoch(model, batches, on_ranks.masked_mse, optimizer, 4, weight, scaler=scaler, max_norm=0.3)
    assert seen == [each, 2 * each, 3 * each, 4 * each]
    assert counter.count == 4 * each + 1  # the log is read at the end, at once
