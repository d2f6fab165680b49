"""The exercise of notebook 03d: accumulation over padded sequences, where every token that is left counts the same."""

from collections.abc import Callable, Sequence
from itertools import count
from math import isnan

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from course_utils.loops import windows
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare, numbers, read_all, rounded
from course_utils.practice.updates import OLD, Expected, Recorder, adam, judge_model, sgd

IGNORED = -100

# A micro-batch is a list of sequences, a sequence the pair (targets that are masked at its start, valid targets).
_EQUAL = ((0, 3), (0, 3))
_PLAIN = (
    ([_EQUAL] * 4, 2),
    ([_EQUAL] * 3, 1),
    ([_EQUAL] * 3, 2),
    ([_EQUAL] * 3, 100),
    ([((0, 2),), ((0, 9), (0, 7)), ((0, 4),), ((0, 5), (0, 5))], 4),
    ([((0, 9), (0, 7)), ((0, 2),), ((0, 3), (0, 1)), ((0, 6),), ((0, 1),)], 2),
    ([((3, 2), (0, 4)), ((1, 5),), ((4, 1), (2, 1), (6, 1))], 3),
)
_EMPTY = (
    ([((0, 2),), ((4, 0), (2, 0)), ((0, 4),)], 3),
    ([((3, 0),), ((0, 2), (1, 3)), ((0, 1),), ((5, 0),), ((0, 3),)], 2),
    ([((0, 2),), ((0, 4),), ((3, 0),), ((4, 0), (1, 0)), ((0, 3),)], 2),
)


@exercise(
    "accumulate_tokens",
    hints={
        "token-weights": "The message says what counts how much. Do you divide by the micro-batches, by the words, or "
        "by all positions with their padding?",
        "loss-scale": "All tokens count the same, but not what they should. Is the divisor the number of valid targets "
        "in this window? An empty micro-batch holds 0 of them, not 1.",
        "nan": "Which micro-batch has a mean of 0/0, and what does a weight of 0 do to a NaN?",
        "empty-step": "Sometimes the whole window is empty. A step with zeros in `.grad` still moves the weights under "
        "momentum or Adam.",
        "raises": "If it is a ZeroDivisionError: sometimes the whole window has no valid target. Otherwise print the "
        "values on the line that is named.",
        "held-graphs": "Your updates are right, but you add the losses and call `backward()` once, as torchtune did "
        "for a while.",
        "wrong-length": "One number per update: not one per micro-batch, and none for a window that makes no update.",
        "wrong-loss": "The updates are right. The mean loss of a window is the sum of what you call `backward()` on.",
    },
)
def _accumulate_tokens(answer: Callable) -> str:
    for batches, n in _PLAIN:
        _judge_counts(answer, batches, n)
    _judge_counts(answer, _PLAIN[0][0], 2, dirty=True)
    for batches, n in _EMPTY:
        _judge_counts(answer, batches, n)
    for make_optimizer in (sgd, adam):
        for n in (1, 2, 4):
            _judge_parameters(answer, make_optimizer, n)
    return (
        "full and short windows, ragged words, masked beginnings, micro-batches and whole windows without a valid "
        "target, a dirty start, SGD and Adam: every valid target counts as in the large batch."
    )


class _Reader(nn.Module):
    """Like a `Tally`, for cross-entropy: two scores per token, of which the first is a weight of its own."""

    def __init__(self, tokens: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(tokens, dtype=torch.float64))
        self.shift = 0.1 * (torch.arange(tokens, dtype=torch.float64) % 7) - 0.3  # so that the losses differ

    def forward(self, inputs: Tensor) -> Tensor:
        score = self.weight[inputs] + self.shift[inputs]
        return torch.stack([score, torch.zeros_like(score)], -1)


def _micro_batches(shapes: Sequence) -> list[tuple[Tensor, Tensor]]:
    """Inputs, in which every valid token has an index of its own, from 0 on; targets 0 or 1, or ignored."""
    index, batches = count(), []
    for shape in shapes:
        width = max(map(sum, shape))
        inputs = torch.zeros(len(shape), width, dtype=torch.long)
        targets = torch.full_like(inputs, IGNORED)
        for row, (masked, valid) in enumerate(shape):
            for column in range(masked, masked + valid):
                inputs[row, column] = next(index)
                targets[row, column] = inputs[row, column] % 2
        batches.append((inputs, targets))
    return batches


def _valid(batch: tuple[Tensor, Tensor]) -> Tensor:
    return batch[1] != IGNORED


def _flat(window: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The valid tokens of a window in one row: no padding, hence nothing that could be counted wrongly."""
    return tuple(torch.cat([batch[part][_valid(batch)] for batch in window]) for part in (0, 1))


def _judge_counts(answer: Callable, shapes: Sequence, n: int, dirty: bool = False) -> None:
    """Every update and every logged loss of two epochs, on a model whose gradient says how much each token counts."""
    batches = _micro_batches(shapes)
    counts = [int(_valid(batch).sum()) for batch in batches]
    case = f"micro-batches of {counts} valid targets, N = {n}"
    case += ", and a gradient left by an earlier backward pass" if dirty else ""
    other_sizes = (
        ("micro-batches are weighted by their sequences, not by their tokens", [len(x) for x, _ in batches]),
        ("padding and masked targets are counted as tokens", [y.numel() for _, y in batches]),
    )
    expected = Expected(counts, n, other_sizes=other_sizes, unit="tokens")

    # What each token's weight changes in its own loss, and that loss: with these the rows of .grad can be read.
    model = _Reader(sum(counts))
    inputs, targets = _flat(batches)
    losses = cross_entropy(model(inputs), targets, reduction="none")
    (slopes,) = torch.autograd.grad(losses.sum(), model.weight)
    losses = losses.detach()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    recorder, logged = Recorder(model.weight, optimizer, dirty), []
    for _ in range(2):
        recorder.start_epoch()
        copies = [(inputs.clone(), targets.clone()) for inputs, targets in batches]
        logged.append(read_all(answer(model, copies, optimizer, n), at_most=len(batches) + 2))
    observed = recorder.observed(skip_idle=True)  # a step without gradients moves nothing
    observed.rows = [row / slopes for row in observed.rows]
    expected.compare(observed, case, OLD / slopes if dirty else None)

    right = [float(row @ losses) for row in expected.rows[: len(expected.windows)]]
    means = [float(losses[expected.owner == place].mean()) for place in range(len(batches))]
    groups = [[means[place] for place in group] for group in expected.windows]
    for got in logged:
        _judge_losses(got, right, [sum(group) / len(group) for group in groups], case)


def _judge_losses(got: object, right: list[float], means_of_means: list[float], case: str) -> None:
    got = numbers(got, len(right), "a list of losses, one per update (the updates are right)")
    case = f"{case}: the updates are right, but of the losses {rounded(right)} were expected, got {rounded(got)}"
    if any(map(isnan, got)):
        raise Mistake("nan", f"{case}. The mean over no valid target is 0/0, and 0 times NaN is NaN.")
    if len(got) != len(right):
        raise Mistake("wrong-length", f"{case}. Return one number per update.")
    known = (
        ("token-weights", "the mean of the micro-batches' means. Use the weights of the gradient", means_of_means),
        ("wrong-loss", "it should be the mean loss over all valid targets of a window", got),
    )
    compare(got, right, case, known)


def _judge_parameters(answer: Callable, make_optimizer: Callable, n: int) -> None:
    """Every parameter of a real model, and that no two micro-batches' activations are in memory at once."""
    batches = []
    for lengths in ((6, 2, 4), (1, 1, 1), (0, 0, 0), (6, 6, 6), (6, 6, 6), (3, 6, 2), (0, 0, 0), (0, 0, 0), (5, 1, 2)):
        inputs = torch.randint(5, (3, 6))
        targets = torch.randint(5, (3, 6))
        targets[torch.arange(6) >= torch.tensor(lengths)[:, None]] = IGNORED
        batches.append((inputs, targets))

    def correct(model: nn.Module, optimizer: Optimizer) -> None:
        for window in [*windows(batches, n)] * 2:
            inputs, targets = _flat(window)
            if len(targets):
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                optimizer.step()

    def learners(model: nn.Module, optimizer: Optimizer) -> None:
        for _ in range(2):
            read_all(answer(model, list(batches), optimizer, n), at_most=len(batches) + 2)

    def one(model: nn.Module) -> Tensor:
        inputs, targets = batches[0]
        return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    model = nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 5)).double()
    judge_model(
        learners, correct, model, make_optimizer, f"on a real model, N = {n}", one if n == 4 else None, factor=2.5
    )
