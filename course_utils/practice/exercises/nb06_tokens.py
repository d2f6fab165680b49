"""The exercise of notebook 06: accumulation over padded sequences, where every token that is left counts the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.loops import windows
from course_utils.practice.bench import Exercise, Seen, changed, edits, numbers
from course_utils.practice.loop import Case, Loop

IGNORED = -100


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
            scores = model(inputs).flatten(0, 1)
            loss = F.cross_entropy(scores, targets.flatten(), reduction="sum") / total
            loss.backward()
            window_loss += loss.detach()
        optimizer.step()
        losses.append(window_loss.item())
    return losses


@dataclass(frozen=True)
class Padded(Case):
    """Two epochs; `shapes` are micro-batches of sequences: (targets that are masked at its start, valid targets)."""

    shapes: Sequence = ()


def padded(shapes: Sequence, n: int, **more) -> Padded:
    counts = tuple(sum(valid for _, valid in shape) for shape in shapes)
    return Padded((counts, counts), n, shapes=shapes, unit="tokens", **more)


class Reader(nn.Module):
    """Like a `Tally`, for cross-entropy: two scores per token, of which the first is a weight of its own."""

    note: Callable[[Tensor, Tensor], None]

    def __init__(self, tokens: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(tokens, dtype=torch.float64))
        places = torch.arange(tokens, dtype=torch.float64)
        self.shift = 0.1 * (places % 7) - 0.3 + 0.06 * places  # so that the losses differ, also those of windows

    def forward(self, inputs: Tensor) -> Tensor:
        score = self.weight[inputs]
        if score.requires_grad:  # of padding no gradient comes back
            score.register_hook(lambda grad: self.note(inputs[grad != 0], grad[grad != 0]))
        score = score + self.shift[inputs]
        return torch.stack([score, torch.zeros_like(score)], -1)


def watch(answer: Callable, case: Padded) -> Seen:
    """Watches the updates, or a real model's parameters, and the losses that the loop returns."""
    total = sum(map(sum, case.calls))
    model = nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 5)).double() if case.real else Reader(total)
    slopes = None if case.real else torch.sigmoid(model.shift) - (torch.arange(total) % 2 == 0).double()
    loop = Loop(case, memory=1.5, model=model, lr=0.0)  # an empty micro-batch may be kept until the next
    loop.skip_idle, model.note, loop.samples = True, loop.note, torch.arange(total)
    losses, graphs, how = [], [], []

    def call(tokens: Sequence[Tensor]) -> None:
        given, batches = (
            [_batch(*pair, case.real) for pair in zip(case.shapes, tokens, strict=True)] for _ in range(2)
        )
        result = answer(model, batches, loop.optimizer, case.n)
        losses.append(numbers(result, 1, "a list of losses, one per update"))
        graphs.append(isinstance(result, list) and any(isinstance(x, Tensor) and x.requires_grad for x in result))
        how.append(changed(batches, given))

    seen = loop.run(call)
    if slopes is not None:
        loop.updates.rows = [row / slopes for row in loop.updates.rows]
    flat = [loss for some in losses for loss in some]
    return seen | {
        "a loss is NaN": any(loss != loss for loss in flat),
        "losses per epoch": [*map(len, losses)],
        "losses while the model learns" if case.real else "losses": flat,
        "the losses hold graphs": any(graphs),
        "input": next(filter(None, how), ""),
    }


def _batch(shape: Sequence, tokens: Tensor, real: bool) -> tuple[Tensor, Tensor]:
    """Inputs, in which every valid token has an index of its own, and targets 0 or 1; or, if `real`, one of 5 words."""
    tokens = iter(tokens.tolist())
    inputs = torch.zeros(len(shape), max(map(sum, shape)), dtype=torch.long)
    targets = torch.full_like(inputs, IGNORED)
    for row, (masked, valid) in enumerate(shape):
        for column in range(masked, masked + valid):
            token = next(tokens)
            inputs[row, column] = token * (3 * token + 1) % 5 if real else token
            targets[row, column] = (token + column) % 5 if real else token % 2
    return inputs, targets


EQUAL = ((0, 3), (0, 3))
REAL = [
    [(0, int(valid)) for valid in shape] for shape in ("624", "111", "000", "666", "666", "362", "000", "000", "512")
]
FILTER = "window = [batch for batch in window if (batch[1] != -100).any()]"
TOTAL, LOSS = "sum((targets != -100).sum()", 'targets.flatten(), reduction="sum") / total'
WINDOWS = "windows(batches, n)"
ACCUMULATE_TOKENS = Exercise(
    "accumulate_tokens",
    "06_tokens",
    watch,
    solution,
    cases=[
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
    ],
    edits=[
        *edits("token-weights", TOTAL, "sum(targets.numel()"),
        *edits("token-weights", LOSS, "targets.flatten()) * targets.numel() / sum(y.numel() for _, y in window)"),
        *edits(
            "token-weights/sequences",
            LOSS,
            "targets.flatten()) * len(targets) / sum(len(targets) for _, targets in window)",
        ),
        *edits("token-weights/equal", LOSS, "targets.flatten()) / len(window)"),
        *edits("filtered-windows", WINDOWS, "windows([batch for batch in batches if (batch[1] != -100).any()], n)"),
        *edits(
            "filtered-windows/window",
            FILTER,
            "if not all((batch[1] != -100).any() for batch in window):\n    continue",
        ),
        *edits("empty-step", "continue", "optimizer.zero_grad(set_to_none=False)\noptimizer.step()\ncontinue"),
        *edits("wrong-length/empty-window", "continue", "losses.append(0.0)\ncontinue"),
        *edits(
            "token-weights/means",
            "+= loss.detach()",
            "+= loss.detach() * total / (targets != -100).sum() / len(window)",
        ),
        *edits("not-reset", "return losses", "return [sum(losses[: k + 1]) / (k + 1) for k in range(len(losses))]"),
        *edits("whole-epoch", "return losses", "return [sum(losses) / len(losses)] * len(losses)"),
        *edits("wrong-order", "return losses", "return losses[::-1]"),
    ],
    channels={
        "a loss is NaN": "nan",
        "losses per epoch": "wrong-length",
        "losses": "wrong-loss",
        "losses while the model learns": "wrong-weights",
        "the losses hold graphs": "held-graphs",
    },
)
