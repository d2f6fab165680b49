"""Models and data for the loops of the zoo, in float64 and with seeds of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from string import ascii_lowercase

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import SGD

from course_utils.data import digits, words


@contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with tanh between them, the same at each call."""
    with _seeded():
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair, dtype=torch.float64), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def classifier(lr: float = 0.1) -> tuple[nn.Sequential, SGD]:
    """A perceptron for the digits, and its optimizer."""
    model = perceptron(64, 16, 10)
    return model, SGD(model.parameters(), lr=lr)


def replayed_classifier() -> tuple[nn.Sequential, SGD]:
    """A classifier whose gradients always have the same memory, as in a replayed CUDA graph."""
    model, optimizer = classifier()
    places = {p: torch.empty_like(p) for p in model.parameters()}
    for p in places:
        p.register_hook(lambda gradient, p=p: places[p].copy_(gradient).detach())
    return model, optimizer


@cache
def _digits() -> tuple[Tensor, Tensor]:
    images, labels = digits()
    return images.double(), labels


def digit_batches(count: int, size: int = 8, damaged: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of handwritten digits; the images of the damaged one are NaN."""
    images, labels = (tensor[: count * size].split(size) for tensor in _digits())
    batches = list(zip(images, labels, strict=True))
    if damaged is not None:
        batches[damaged] = (batches[damaged][0] * float("nan"), batches[damaged][1])
    return batches


def bigram_model() -> nn.Sequential:
    """Predicts each letter from the one before."""
    with _seeded():
        return nn.Sequential(nn.Embedding(27, 8, dtype=torch.float64), nn.Linear(8, 27, dtype=torch.float64))


@cache
def word_batches() -> list[tuple[Tensor, Tensor]]:
    """8 micro-batches of 4 words: letters, and next letters, with -100 after the end of a word.

    Words of 3 letters and words of 12 alternate, so that a micro-batch holds 8 targets or 44.
    """
    symbols = " " + ascii_lowercase  # 0 is padding
    three, twelve = ([word for word in words() if len(word) == length] for length in (3, 12))
    batches = []
    for k in range(8):
        chosen = (twelve if k % 2 else three)[4 * k : 4 * k + 4]
        letters = torch.tensor([[symbols.index(letter) for letter in word.ljust(12)] for word in chosen])
        follow = letters[:, 1:].masked_fill(letters[:, 1:] == 0, -100)
        batches.append((letters[:, :-1], follow))
    return batches


def word_windows() -> list[list[tuple[Tensor, Tensor]]]:
    """The same micro-batches twice, in windows of 4."""
    return [word_batches()[k : k + 4] for k in (0, 4)] * 2


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
