"""Random training runs against a reference that sums the losses of single items.

Each pair of an optimizer and a schedule gets a few runs. `EXAMPLES=100 pytest
tests/loops/test_properties.py` tries that many each.
"""

import math
import warnings
from dataclasses import dataclass
from itertools import cycle

import pytest
import reference
import torch
from hypothesis import strategies as st
from torch import nn, optim
from torch.amp import GradScaler
from torch.optim import lr_scheduler

import properties
from course_utils import backward_window, evaluate, train_epoch, windows
from course_utils.loops import items

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD, fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam, fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "SparseAdam": lambda p: optim.SparseAdam(p, lr=0.01),
}

SCHEDULES = {
    "none": lambda o: None,
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}
PLACES = ["loader", "weight", "forward", "loss", "backward", "hook", "before the step", "after the step", "scheduler"]


class Model(nn.Sequential):
    """Two layers, and what its kind changes; `owned()` is what the optimizer gets."""

    def __init__(self, kind: str) -> None:
        first = nn.Embedding(4, 4, sparse=True) if "sparse" in kind else nn.Linear(3, 4)
        super().__init__(first, nn.Tanh(), nn.Linear(4, 2))
        self.kind = kind
        if kind == "frozen":
            self[0].weight.requires_grad_(False)
        if kind == "unreached":
            self.unreached = nn.Parameter(torch.ones(2))
        if kind == "complex":
            self.turn = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))
        if kind == "tied":
            self[1] = nn.Sequential(nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 4), nn.Tanh())
            self[1][2].weight = self[0].weight

    def forward(self, x):
        if self.kind == "complex":
            return self[2](torch.view_as_real(x.to(torch.complex128) @ self.turn).flatten(1))
        return super().forward(x.argmax(-1) if "sparse" in self.kind else x)

    def owned(self) -> list[nn.Parameter]:
        return list({"owned in part": self[2], "sparse alone": self[0]}.get(self.kind, self).parameters())


def kinds_for(optimizer: str) -> list[str]:
    if optimizer == "SparseAdam":
        return ["sparse alone"]
    kinds = ["plain", "frozen", "owned in part", "unreached", "tied"]
    return kinds + ["sparse"] * (optimizer == "SGD") + ["complex"] * ("fused" not in optimizer)


# Runs


@dataclass(frozen=True)
class Run:
    """One training run: everything that is drawn, besides the optimizer and the schedule."""

    kind: str
    batches: tuple[tuple[int, ...], ...]  # how often each item counts; 0 is a masked item
    n: int
    weight: str  # what weight() returns: int, float, tensor, mixed; "items": the default
    groups: int
    max_norm: float | None
    scaler: str | None
    poisoned: int | None  # the micro-batch with an infinity
    fault: tuple[str, int, type] | None  # at which call of what an error comes, and which
    seed: int

    def data(self) -> list[tuple]:
        generator = torch.Generator().manual_seed(self.seed)
        made = []
        for k, counts in enumerate(self.batches):
            x, y = (torch.randn(len(counts), width, generator=generator, dtype=torch.float64) for width in (3, 2))
            made.append((x, y * (torch.inf if k == self.poisoned else 1), torch.tensor(counts, dtype=torch.float64)))
        return made

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return Model(self.kind).double()

    def made(self, optimizer: str, schedule: str):
        """A model, its optimizer, whose groups differ in their learning rates, and its schedule."""
        model = self.model()
        owned = model.owned()
        groups = [{"params": owned[k :: self.groups]} for k in range(min(self.groups, len(owned)))]
        made = OPTIMIZERS[optimizer](groups)
        for k, group in enumerate(made.param_groups):
            group["lr"] /= 1 + k
        return model, made, SCHEDULES[schedule](made)


@st.composite
def runs(draw, optimizer: str) -> Run:
    weight = draw(st.sampled_from(["items", "int", "float", "tensor", "mixed"]))
    counts = st.just(1) if weight == "items" else st.sampled_from([1, 0, 2, 5])
    batches = draw(st.lists(st.lists(counts, min_size=1, max_size=3).map(tuple), min_size=1, max_size=7))
    kind = draw(st.sampled_from(kinds_for(optimizer)))
    fault = st.tuples(
        st.sampled_from(PLACES), st.integers(0, len(batches)), st.sampled_from([RuntimeError, KeyboardInterrupt])
    )
    return Run(
        kind=kind,
        batches=tuple(batches),
        n=draw(st.sampled_from([2, 1, 3, 4, 100])),
        weight=weight,
        groups=draw(st.integers(1, 3)),
        max_norm=draw(st.sampled_from([None, 0.3, 100.0])),
        scaler=draw(st.sampled_from([None, "disabled"] + ["enabled"] * (2 * (kind != "complex")))),
        poisoned=draw(st.none() | st.integers(0, len(batches) - 1)),
        fault=draw(st.none() | fault),
        seed=draw(st.integers(0, 2**16)),
    )


class Faults:
    """Raises once, at one call of one point."""

    def __init__(self, fault: tuple[str, int, type] | None) -> None:
        self.point, self.left, self.error = fault or ("", 0, None)

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == -1:
                raise self.error


def mean_loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    x, y, counts = batch
    return ((model(x) - y).square().mean(1) * counts).sum() / counts.sum()


def weight_of(run: Run, k: int, batch: tuple):
    total = batch[2].sum()
    style = {"mixed": ["int", "float", "tensor"][k % 3], "items": "int"}.get(run.weight, run.weight)
    return {"int": int(total), "float": float(total), "tensor": total}[style]


class Ours:
    """The same run with the package's loop, and with faults."""

    def __init__(self, run: Run, model: nn.Module, optimizer, scheduler) -> None:
        self.run, self.model, self.optimizer, self.scheduler = run, model, optimizer, scheduler
        self.at = Faults(run.fault)
        self.scaler = run.scaler and GradScaler("cpu", enabled=run.scaler == "enabled", growth_interval=2)
        self.seen: list[list] = []
        optimizer.register_step_pre_hook(self.before_step)
        optimizer.register_step_post_hook(lambda *_: self.at("after the step"))
        hooked = model.owned()[-1]
        hooked.register_hook(lambda gradient: self.at("hook"))
        if scheduler:
            step = scheduler.step
            scheduler.step = lambda: (self.at("scheduler"), step())

    def before_step(self, *_) -> None:
        scale = self.scaler.get_scale() if self.scaler else 1.0
        owned = {p for group in self.optimizer.param_groups for p in group["params"]}
        self.seen.append([reference.dense(p.grad) / (1.0 if p in owned else scale) for p in self.model.parameters()])
        self.at("before the step")

    def loss_fn(self, model: nn.Module, batch: tuple) -> torch.Tensor:
        self.at("forward")
        loss = mean_loss(model, batch)
        self.at("loss")
        loss.register_hook(lambda _: self.at("backward"))
        return loss

    def epoch(self, batches: list) -> tuple[list[float], int]:
        def loader():
            for batch in batches:
                self.at("loader")
                yield batch

        def weight(batch) -> object:
            self.at("weight")
            if self.run.weight == "items":
                return items(batch)
            return weight_of(self.run, next(k for k, other in enumerate(batches) if other is batch), batch)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            losses = train_epoch(
                self.model, loader(), self.loss_fn, self.optimizer, self.run.n, weight,
                scaler=self.scaler, max_norm=self.run.max_norm, scheduler=self.scheduler,
            )  # fmt: skip
        told = [str(warning.message) for warning in caught if "windows made no update" in str(warning.message)]
        skipped = int(told[0].split()[0]) if told else 0
        said = f"{skipped} of {len(losses)} windows made no update: the norm of their gradients was infinite or NaN"
        assert told == [said][:skipped]
        return losses, skipped


def near(ours, theirs) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9, equal_nan=True)


def dense_state(optimizer) -> dict:
    return {
        (index, name): reference.dense(value) if isinstance(value, torch.Tensor) else value
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
    }


def same_state(ours: Ours, theirs: reference.Reference) -> None:
    near(ours.seen, theirs.seen)
    near([*map(torch.Tensor.detach, ours.model.parameters())], [*map(torch.Tensor.detach, theirs.model.parameters())])
    near(*(dense_state(run.optimizer) for run in (ours, theirs)))
    lrs = [[group["lr"] for group in run.optimizer.param_groups] for run in (ours, theirs)]
    assert lrs[0] == lrs[1]
    if ours.scaler and ours.scaler.is_enabled():
        assert ours.scaler.get_scale() == theirs.scale


@pytest.mark.parametrize(("optimizer", "schedule"), list(zip(OPTIMIZERS, cycle(SCHEDULES))))
def test_a_run_makes_the_updates_of_single_items(optimizer, schedule):
    def holds(run: Run) -> None:
        batches = run.data()
        ours = Ours(run, *run.made(optimizer, schedule))
        theirs = reference.Reference(*run.made(optimizer, schedule), run.max_norm, growth=2)
        at = Faults(run.fault)
        for _ in range(2):
            try:
                expected = theirs.epoch(batches, run.n, at)
            except (RuntimeError, KeyboardInterrupt) as error:
                with pytest.raises(type(error)):
                    ours.epoch(batches)
            else:
                if not expected[0]:
                    with pytest.raises(ValueError, match="batches gave nothing"):
                        ours.epoch(batches)
                    return
                if expected[1] == len(expected[0]) and not (
                    run.scaler == "enabled" and all(map(math.isfinite, expected[0]))
                ):
                    with pytest.raises(FloatingPointError, match=f"{expected[1]} of {expected[1]} windows"):
                        ours.epoch(batches)
                    continue
                losses, skipped = ours.epoch(batches)
                near(losses, expected[0])
                assert skipped == expected[1]
                assert all(p.grad is None or not p.grad.any() for p in ours.model.parameters())
            same_state(ours, theirs)

    properties.check(holds, runs(optimizer), f"{optimizer}, {schedule}", examples=6)


@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam"])
def test_backward_window_adds_the_gradient_of_single_items(optimizer):
    def holds(run: Run) -> None:
        model, batches = run.model().eval(), run.data()
        scaler = run.scaler and GradScaler("cpu", enabled=run.scaler == "enabled")
        weights = {id(batch[0]): weight_of(run, k, batch) for k, batch in enumerate(batches)}
        expected = [reference.dense(None)] * len(list(model.parameters()))
        for window in windows(batches, run.n):
            ours = backward_window(model, window, mean_loss, lambda batch: weights[id(batch[0])], scaler=scaler)
            theirs = reference.window_loss(model, window)
            if theirs is None:
                assert ours is None
                continue
            near(ours, theirs.detach())
            scale = scaler.get_scale() if scaler else 1.0
            for k, gradient in enumerate(reference.gradients(model, theirs)):
                if gradient is not None:
                    before = expected[k] if expected[k].numel() else 0
                    expected[k] = before + scale * reference.dense(gradient)
            for one, other in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(
                    reference.dense(one.grad), other, rtol=1e-8, atol=1e-9 * scale, equal_nan=True
                )

    properties.check(holds, runs(optimizer), f"backward_window, {optimizer}", examples=8)


def test_evaluation_is_the_mean_over_single_items():
    def holds(run: Run) -> None:
        model, batches = run.model(), run.data()
        expected = reference.window_loss(model, batches)
        weights = {id(batch[0]): weight_of(run, k, batch) for k, batch in enumerate(batches)}

        def evaluated() -> float:
            return evaluate(model, iter(batches), mean_loss, lambda batch: weights[id(batch[0])])

        if expected is None:
            with pytest.raises(ValueError, match="batches gave nothing"):
                evaluated()
        else:
            near(evaluated(), expected.item())

    properties.check(holds, runs("SGD"), "evaluate", examples=8)
