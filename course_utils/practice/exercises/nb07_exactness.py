"""The exercise of notebook 07, a test of exactness: it is run against windows that are exact or not."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.practice.bench import Exercise, Mistake, Seen, truth

Window = list[tuple[Tensor, Tensor]]
Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


def mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def by_samples(sizes: Sequence[int]) -> list[float]:
    """The correct weights of losses that are means over samples."""
    return [size / sum(sizes) for size in sizes]


def by_count(sizes: Sequence[int]) -> list[float]:
    return [1 / len(sizes) for _ in sizes]


def by_rounded_shares(sizes: Sequence[int]) -> list[float]:
    return [round(weight, 8) for weight in by_samples(sizes)]


def undivided(sizes: Sequence[int]) -> list[float]:
    return [1.0 for _ in sizes]


def without_the_last(sizes: Sequence[int]) -> list[float]:
    return [*by_samples(sizes)[:-1], 0.0]


def uphill(sizes: Sequence[int]) -> list[float]:
    return [-weight for weight in by_samples(sizes)]


def root_of_the_mean(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), F.one_hot(batch[1], 4).double()).sqrt()


def tiny(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mean_loss(model, batch) * 1e-13


def huge(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mean_loss(model, batch) * 1e9


class Case(NamedTuple):
    """A window, and what is said of a test that errs on it; `bug` begins with "misses" if the window is not exact."""

    bug: str
    what: str
    layers: Callable[[], Sequence[nn.Module]] = list
    weights: Callable[[Sequence[int]], list[float]] = by_samples
    loss_fn: Loss = mean_loss
    sizes: Sequence[int] = (4, 4, 4, 4)
    bias: float = 1.0  # how often one bias counts

    @property
    def exact(self) -> bool:
        return not self.bug.startswith("misses")


def _nested() -> list[nn.Module]:
    """Two layers of dropout: a seed alone would make one of them draw the same masks for a window and a large batch."""
    return [nn.Sequential(nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5))]


def _frozen() -> list[nn.Module]:
    """BatchNorm with statistics of its own, in eval mode."""
    layer = nn.BatchNorm1d(5).double()
    layer(torch.randn(32, 5, dtype=torch.float64))
    return [layer.eval()]


RAGGED = (7, 2, 4, 1)
CASES = (
    Case("misses-batchnorm", "a model with BatchNorm in training mode", lambda: [nn.BatchNorm1d(5)]),
    Case("misses-wrong-loops", "a loop that divides unequal micro-batches by N", weights=by_count, sizes=RAGGED),
    Case("misses-wrong-loops", "a loop that does not divide", weights=undivided),
    Case("misses-wrong-loops", "a loop that leaves the last micro-batch out", weights=without_the_last),
    Case("misses-wrong-loops", "a loop that turns the gradient's sign around", weights=uphill),
    Case("misses-wrong-loops", "a loop that counts one bias twice", bias=2.0),
    Case("misses-wrong-losses", "a root of a mean", loss_fn=root_of_the_mean),
    Case("misses-small-errors", "shares rounded to eight digits", weights=by_rounded_shares, sizes=RAGGED),
    Case("misses-tiny-gradients", "a tiny loss and a loop that does not divide", weights=undivided, loss_fn=tiny),
    Case("accuses-rounding", "equal micro-batches, divided by N", weights=by_count),
    Case("accuses-rounding", "unequal micro-batches, weighted by samples", sizes=RAGGED),
    Case("accuses-rounding", "unequal micro-batches and a huge loss", sizes=RAGGED, loss_fn=huge),
    Case("accuses-dropout", "a model with dropout", lambda: [nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5)]),
    Case("accuses-dropout", "a model with dropout inside another layer", _nested),
    Case("accuses-frozen", "a model with a frozen BatchNorm", _frozen),
)


def solution(model, window, loss_fn, accumulate):
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    large_batch = tuple(torch.cat(parts) for parts in zip(*window, strict=True))
    model.zero_grad()
    loss_fn(model, large_batch).backward()
    large = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    accumulate(model, window, loss_fn)
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    return bool((found - large).norm() < 1e-12 * large.norm())


def watch(answer: Callable, _: None) -> Seen:
    cases = list(CASES)
    random.Random(4).shuffle(cases)  # a test that counts its calls cannot know which comes next
    said = {case.what: _says(answer, case) for case in cases}
    return {"your test": Said([case for case in CASES if said[case.what] != case.exact])}


class Said(list):
    """The cases on which a test errs."""

    def agrees(self, other: "Said", rtol: float) -> bool:
        return self == other

    def difference(self, want: "Said") -> tuple[str, str]:
        missed, accused = ([case for case in self if case.exact is exact] for exact in (False, True))
        if len(missed) == sum(not case.exact for case in CASES) and not accused:
            return "always-true", f"your test says True for all {len(CASES)} windows, and {len(missed)} aren't exact"
        parts = [
            f"{said} for {'; '.join(case.what for case in some)}"
            for said, some in ((True, missed), (False, accused))
            if some
        ]
        return self[0].bug, f"your test says {', and '.join(parts)}"


def _says(answer: Callable, case: Case) -> bool:
    """What a test says about a case, for which it gets a model and a window of its own."""
    torch.default_generator.manual_seed(3)
    layers = [layer.double() for layer in case.layers()]
    model = nn.Sequential(nn.Linear(3, 5).double(), *layers, nn.Tanh(), nn.Linear(5, 4).double())
    x, y = torch.randn(sum(case.sizes), 3, dtype=torch.float64), torch.randint(4, (sum(case.sizes),))
    window = list(zip(x.split(list(case.sizes)), y.split(list(case.sizes)), strict=True))
    ran = []

    def accumulate(model: nn.Module, window: Window, loss_fn: Loss) -> None:
        ran.append(window)
        for batch, weight in zip(window, case.weights(case.sizes), strict=True):
            (loss_fn(model, batch) * weight).backward()
        model[-1].bias.grad *= case.bias

    said = truth(answer(model, window, case.loss_fn, accumulate))
    if not ran:
        raise Mistake("does-not-run", f"your test returned {said} and never called accumulate.")
    return said


IS_EXACT = Exercise(
    "is_exact",
    "07_exactness",
    watch,
    solution,
    passed=f"your test finds all {sum(not case.exact for case in CASES)} that are not exact, and passes all "
    f"{sum(case.exact for case in CASES)} that are.",
)
