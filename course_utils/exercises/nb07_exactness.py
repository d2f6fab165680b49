"""The exercise of notebook 07, a test of exactness: it is run against windows that are exact or not."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercises.judging import Mistake, Seen, compare, exercise, truth

Batch = tuple[Tensor, Tensor]

EQUAL, RAGGED = (4, 4, 4, 4), (7, 2, 4, 1)
SHARES = [size / sum(RAGGED) for size in RAGGED]  # the correct weights of losses that are means over samples


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def root_of_the_mean(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]), F.one_hot(batch[1], 4).double()).sqrt()


class Case(NamedTuple):
    """A window, and the name of a test's mistake on it; `bug` begins with "misses" if the window is not exact."""

    bug: str
    what: str
    weights: Sequence[float] = (1 / 4,) * 4
    sizes: Sequence[int] = EQUAL
    layers: Callable[[], Sequence[nn.Module]] = list
    loss_fn: Callable = mean_loss
    scale: float = 1.0  # of the loss
    bias: float = 1.0  # how often one bias counts


def _dropout() -> list[nn.Module]:
    """Two layers of it: a seed alone would make one of them draw other masks for a window than for a large batch."""
    return [nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5)]


CASES = (
    Case("misses-batchnorm", "a model with BatchNorm in training mode", layers=lambda: [nn.BatchNorm1d(5)]),
    Case("misses-wrong-loops", "a loop that divides unequal micro-batches by N", sizes=RAGGED),
    Case("misses-wrong-loops", "a loop that does not divide", (1.0,) * 4),
    Case("misses-wrong-loops", "a loop that leaves the last micro-batch out", (*(1 / 4,) * 3, 0.0)),
    Case("misses-wrong-loops", "a loop that turns the gradient's sign around", (-1 / 4,) * 4),
    Case("misses-wrong-loops", "a loop that counts one bias twice", bias=2.0),
    Case("misses-wrong-losses", "a root of a mean", loss_fn=root_of_the_mean),
    Case("misses-small-errors", "shares rounded to eight digits", [round(w, 8) for w in SHARES], RAGGED),
    Case("misses-tiny-gradients", "a tiny loss and a loop that does not divide", (1.0,) * 4, scale=1e-13),
    Case("accuses-rounding", "equal micro-batches, divided by N"),
    Case("accuses-rounding", "unequal micro-batches, weighted by samples", SHARES, RAGGED),
    Case("accuses-rounding", "unequal micro-batches and a huge loss", SHARES, RAGGED, scale=1e9),
    Case("accuses-dropout", "a model with dropout", layers=_dropout),
    Case("accuses-dropout", "a model with dropout inside another layer", layers=lambda: [nn.Sequential(*_dropout())]),
    Case("accuses-frozen", "a model with a frozen BatchNorm", layers=lambda: [nn.BatchNorm1d(5).eval()]),
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
    """The answers of a test, by window. They come in an order in which one that counts its calls cannot know them."""
    said = {case.what: _says(answer, case) for case in random.Random(4).sample(CASES, len(CASES))}
    return {case.what: said[case.what] for case in CASES}


def _says(answer: Callable, case: Case) -> bool:
    """The answer of a test about a case, for which it gets a model and a window of its own."""
    torch.default_generator.manual_seed(3)
    layers = [layer.double() for layer in case.layers()]
    model = nn.Sequential(nn.Linear(3, 5).double(), *layers, nn.Tanh(), nn.Linear(5, 4).double())
    x, y = torch.randn(sum(case.sizes), 3, dtype=torch.float64), torch.randint(4, (sum(case.sizes),))
    window = list(zip(x.split(case.sizes), y.split(case.sizes), strict=True))
    ran = []

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        return case.loss_fn(model, batch) * case.scale

    def accumulate(model: nn.Module, window: list[Batch], loss_fn: Callable) -> None:
        ran.append(window)
        for batch, weight in zip(window, case.weights, strict=True):
            (loss_fn(model, batch) * weight).backward()
        model[-1].bias.grad *= case.bias

    said = truth(answer(model, window, loss_fn, accumulate))
    if not ran:
        hint = "Call `accumulate(model, window, loss_fn)`: what it does to `.grad` is what you test."
        raise Mistake("does-not-run", f"your test returned {said} and never called accumulate.", hint)
    return said


HINTS = {
    "misses-batchnorm": "In which mode was the model when you compared? What does BatchNorm normalize with there?",
    "misses-wrong-loops": "Do you compare all entries of both gradients, or only a length, a direction, a loss or one "
    "parameter?",
    "misses-wrong-losses": "Which loss did you take for the large batch, and which gradient did you compare?",
    "misses-small-errors": "What is your limit, and how large is rounding in float64?",
    "misses-tiny-gradients": "Is your limit absolute? `torch.allclose` has an `atol`, and it is not 0.",
    "accuses-rounding": "Two correct sums differ in their last digits. By how much, relative to what? And what was in "
    "`.grad` before the second one?",
    "accuses-dropout": "Does anything still draw random numbers? A layer may be inside another one, and with two "
    "layers a seed doesn't give both sides the same masks.",
    "accuses-frozen": "Some layers were in eval mode for a reason. Which of your lines changed that?",
}


@exercise
def is_exact(answer):
    compare(watch, answer, solution, channels={case.what: (case.bug, "", HINTS[case.bug]) for case in CASES})
    return "your test finds all 9 that are not exact, and passes all 6 that are."
