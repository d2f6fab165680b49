"""Models and data for the loops of the zoo, in float64 and with seeds of their own."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import SGD

from course_utils.data import digits, next_letters, words
from course_utils.models import mlp

_digits = cache(digits)


@torch.random.fork_rng(devices=[])
def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with tanh between them, the same at each call."""
    torch.default_generator.manual_seed(0)
    return mlp(*sizes, dtype=torch.float64)


def classifier(lr: float = 0.1) -> tuple[nn.Sequential, SGD]:
    """A perceptron for the digits, and its optimizer."""
    model = perceptron(64, 16, 10)
    return model, SGD(model.parameters(), lr=lr)


def fast_classifier() -> tuple[nn.Sequential, SGD]:
    """The same, with a learning rate that clipped gradients need."""
    return classifier(lr=0.5)


def replayed() -> tuple[nn.Sequential, SGD]:
    """A classifier whose gradients always have the same memory, as in a replayed CUDA graph."""
    model, optimizer = classifier()
    for p in model.parameters():
        buffer = torch.empty_like(p)
        p.register_hook(lambda gradient, buffer=buffer: buffer.copy_(gradient).detach())
    return model, optimizer


def digit_batches(count: int, size: int = 8, damaged: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of handwritten digits; the images of the damaged one are NaN."""
    images, labels = (tensor[: count * size].split(size) for tensor in _digits())
    batches = [(image.double(), label) for image, label in zip(images, labels, strict=True)]
    if damaged is not None:
        batches[damaged] = (batches[damaged][0] * float("nan"), batches[damaged][1])
    return batches


@torch.random.fork_rng(devices=[])
def bigrams() -> tuple[nn.Sequential, SGD]:
    """A model that predicts each letter from the one before, and its optimizer."""
    torch.default_generator.manual_seed(0)
    model = nn.Sequential(nn.Embedding(27, 8, dtype=torch.float64), nn.Linear(8, 27, dtype=torch.float64))
    return model, SGD(model.parameters(), lr=0.5)


@cache
def word_windows() -> list[list[tuple[Tensor, Tensor]]]:
    """8 micro-batches of 4 words, in windows of 4, twice: letters, and next letters.

    Words of 1 letter and words of 10 alternate, so that a micro-batch holds 8 targets or 44.
    """
    short, long = ([word for word in words() if len(word) == length] for length in (1, 10))
    chosen = [word for k in range(0, 16, 4) for word in short[k : k + 4] + long[k : k + 4]]
    letters, follow = (tensor.split(4) for tensor in next_letters(chosen))
    batches = list(zip(letters, follow, strict=True))
    return [batches[:4], batches[4:]] * 2


def gan() -> tuple[nn.Sequential, nn.Sequential, SGD, SGD]:
    """A generator of points from noise, a critic of points, and an optimizer for each."""
    generator, critic = perceptron(2, 8, 2), perceptron(2, 8, 1)
    return generator, critic, SGD(generator.parameters(), lr=0.1), SGD(critic.parameters(), lr=0.1)


def point_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of 8 real points and 8 noise vectors."""
    draw = torch.Generator().manual_seed(0)
    real, noise = (torch.randn(count * 8, 2, generator=draw, dtype=torch.float64) for _ in range(2))
    return list(zip((real * 0.5 + 1).split(8), noise.split(8), strict=True))


def as_real(logits: Tensor) -> Tensor:
    """A critic's loss if it must call these points real."""
    return binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


def as_fake(logits: Tensor) -> Tensor:
    """A critic's loss if it must call these points fake."""
    return binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))
