"""The exercise of notebook 06: accumulation over padded sequences, where every token that is left counts the same."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercises.judging import Seen, agree, compare, exercise, numbers
from course_utils.exercises.loop import Case, Loop
from course_utils.loops import windows


def solution(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        window = [batch for batch in window if (batch[1] != -100).any()]
        if not window:
            continue
        total = sum((targets != -100).sum() for _, targets in window)
        optimizer.zero_grad()
        window_loss = 0.0
        for inputs, targets in window:
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum") / total
            loss.backward()
            window_loss += loss.detach()
        optimizer.step()
        losses.append(window_loss.item())
    return losses


@dataclass(frozen=True)
class TokenCase(Case):
    """Two epochs of sequences.

    Args:
        shapes: For each micro-batch and sequence, how many targets are masked at its start, and how many are valid.
    """

    shapes: Sequence = ()

    def positions(self, held: Tensor) -> Iterator[Tensor]:
        """The factors of these tokens if all positions count, in the divisor or as weights of means."""
        each = [(sum(valid for _, valid in shape), len(shape) * max(map(sum, shape))) for shape in self.shapes]
        ratios = torch.tensor([positions / valid for valid, positions in each for _ in range(valid)] * 2)[held]
        mean = len(ratios) / ratios.sum()
        yield from (mean.expand_as(ratios), mean * ratios)

    bugs = (
        (
            lambda u: any(agree(u.factors, factors, 1e-5) for factors in u.case.positions(u.want != 0)),
            "padding",
            "{0.counts}: padding was counted, or masked targets were",
            "Which positions does the loss leave out? Divide by what it counts. See Step 4.",
        ),
    )


def padded(shapes: Sequence, n: int, **more) -> TokenCase:
    sizes = [sum(valid for _, valid in shape) for shape in shapes]
    return TokenCase((sizes, sizes), n, shapes=shapes, unit="tokens", **more)


class Reader(Loop):
    """Its model has two scores for every valid token alone, and for padding; or it is a real one, of 5 words."""

    def __init__(self, case: TokenCase):
        total = sum(map(sum, case.calls))
        words = nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 5))
        super().__init__(case, model=(words if case.real else nn.Embedding(total + 1, 2)).double())
        self.samples = torch.arange(1, total + 1)
        if not case.real:
            self.model.register_forward_hook(self.observe)
            self.slopes = self.model.weight.detach().softmax(-1)[1:, 0] - (self.samples % 2 == 0).double()

    def arrived(self, tokens: Tensor, _: Tensor) -> None:
        self.updates.ran |= set(self.updates.owner[tokens[tokens > 0] - 1].tolist())

    def stepped(self, *_) -> None:
        """Notes how much each token counts. A step without any gradient, which moves nothing, is none."""
        if not self.case.real and self.model.weight.grad is not None:
            self.note(self.model.weight.grad[1:, 0] / self.slopes)

    def batches(self, samples: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [self.batch(shape, tokens) for shape, tokens in zip(self.case.shapes, samples, strict=True)]

    def batch(self, shape: Sequence, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets; padding is 0, and the targets there and of masked tokens are -100."""
        width = max(map(sum, shape))
        valid = torch.tensor([[masked <= k < masked + valid for k in range(width)] for masked, valid in shape]).bool()
        inputs, targets = torch.zeros_like(valid, dtype=torch.long), torch.full_like(valid, -100, dtype=torch.long)
        inputs[valid] = tokens * (3 * tokens + 1) % 5 if self.case.real else tokens
        targets[valid] = tokens // 2 % 5 if self.case.real else tokens % 2
        return inputs, targets


def watch(answer: Callable, case: TokenCase) -> Seen:
    """Watches the updates, or a real model's parameters, and the losses that the loop returns."""
    loop, losses, graphs = Reader(case), [], []

    def call(batches: list) -> None:
        result = answer(loop.model, batches, loop.optimizer, case.n)
        losses.append(numbers(result, 1, "a list of losses, one per update"))
        graphs.append(isinstance(result, list) and any(isinstance(x, Tensor) and x.requires_grad for x in result))

    seen, flat = loop.run(call), [loss for some in losses for loss in some]
    return seen | {
        "a loss is NaN": any(loss != loss for loss in flat),
        "losses per epoch": [*map(len, losses)],
        "losses while the model learns" if case.real else "losses": flat,
        "the losses hold graphs": any(graphs),
    }


EQUAL = ((0, 3), (0, 3))
REAL = [
    [(0, int(valid)) for valid in shape] for shape in ("624", "111", "000", "666", "666", "362", "000", "000", "512")
]
CASES = [
    *(padded([EQUAL] * many, n) for many, n in ((6, 2), (3, 1), (3, 2), (3, 100))),
    padded([((0, 2),), ((0, 9), (0, 7)), ((0, 4),), ((0, 5), (0, 5))], 4),
    padded([((0, 9), (0, 7)), ((0, 2),), ((0, 3), (0, 1)), ((0, 6),), ((0, 1),)], 2),
    padded([((3, 2), (0, 4)), ((1, 5),), ((4, 1), (2, 1), (6, 1))], 3),
    padded([EQUAL] * 6, 2, dirty=True),
    padded([((3, 0),), ((0, 2), (1, 3)), ((0, 1),), ((5, 0),), ((0, 3),)], 2),
    padded([((0, 2),), ((4, 0), (2, 0)), ((0, 4),)], 3),
    padded([((0, 2),), ((0, 4),), ((3, 0),), ((4, 0), (1, 0)), ((0, 3),)], 2),
    *(padded(REAL, n, real=True, adam=adam) for n, adam in ((1, False), (2, False), (4, False), (2, True))),
    padded([REAL[0], *REAL[3:4] * 3], 4, real=True),
]
CHANNELS = {
    "a loss is NaN": ("nan", "the mean over no token is 0/0, and 0 times NaN is NaN",
                      "Step 5: which micro-batch has a mean of 0/0, and what does a weight of 0 do to it?"),
    "losses per epoch": ("wrong-length", "return one number per update",
                         "Where do you append it, and what does your loop do if a window holds no token?"),
    "losses": ("wrong-loss", "it should be the mean loss over a window's tokens",
               "Every token of a window counts once. Which losses do you add, and by what do you divide?"),
    "losses while the model learns": (
        "wrong-weights", "it is meant at the weights of the window's own forward passes, before its update",
        "Which weights does the model have at the moment when you compute the loss that you log?"),
    "the losses hold graphs": ("held-graphs", "log numbers, or detach",
                               "When can what a forward pass has saved be freed? Only when nothing refers to it."),
}  # fmt: skip


@exercise
def accumulate_tokens(answer):
    hints = {
        "not-attempted": "One update per window, and a list of losses: what do you append, and where do you return it?",
        "empty-step": "Sometimes no token in a window counts. A step on zeros may still move weights (see 02).",
    }
    compare(watch, answer, solution, CASES, CHANNELS, hints)
    return (
        "full and short windows, ragged words, masked beginnings, micro-batches and whole windows without a token, old "
        "gradients, SGD and Adam: every token counts as in the large batch."
    )
