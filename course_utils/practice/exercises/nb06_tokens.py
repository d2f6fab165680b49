"""The exercise of notebook 06: accumulation over padded sequences, where every token that is left counts the same."""

import copy
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from math import isnan

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from course_utils.loops import windows
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, numbers, read_all, rounded
from course_utils.practice.updates import (
    OLD,
    Expected,
    Recorder,
    adam,
    alone,
    compare_losses,
    judge_model,
    losses_of_large_batches,
    sgd,
)

IGNORED = -100

# A micro-batch is a list of sequences, a sequence the pair (targets that are masked at its start, valid targets).
_EQUAL = ((0, 3), (0, 3))
_PLAIN = (
    ([_EQUAL] * 6, 2),
    ([_EQUAL] * 3, 1),
    ([_EQUAL] * 3, 2),
    ([_EQUAL] * 3, 100),
    ([((0, 2),), ((0, 9), (0, 7)), ((0, 4),), ((0, 5), (0, 5))], 4),
    ([((0, 9), (0, 7)), ((0, 2),), ((0, 3), (0, 1)), ((0, 6),), ((0, 1),)], 2),
    ([((3, 2), (0, 4)), ((1, 5),), ((4, 1), (2, 1), (6, 1))], 3),
)
_EMPTY = (
    ([((3, 0),), ((0, 2), (1, 3)), ((0, 1),), ((5, 0),), ((0, 3),)], 2),
    ([((0, 2),), ((4, 0), (2, 0)), ((0, 4),)], 3),
    ([((0, 2),), ((0, 4),), ((3, 0),), ((4, 0), (1, 0)), ((0, 3),)], 2),
)


@exercise(
    "accumulate_tokens",
    hints={
        "not-attempted": "One update per window, and a list of losses: what do you append, and where do you return it?",
        "raises": "If shapes differ: which does `cross_entropy` take? See how `loss_fn` in Step 1 calls it.",
        "token-weights": "Do you divide by micro-batches, sequences, or positions with their padding? See Step 4.",
        "loss-scale": "Does the divisor count the tokens of this very window? An empty micro-batch has 0.",
        "nan": "Step 5: which micro-batch has a mean of 0/0, and what does a weight of 0 do to it?",
        "empty-step": "Sometimes no token in a window counts. A step on zeros may still move weights (see 02).",
        "filtered-windows": "A micro-batch without a token adds nothing. Does it keep its place in a window?",
        "wrong-length": "One number for each update. What does your loop do if a window holds no token?",
        "whole-epoch": "Which micro-batches does the number of a window depend on? Only its own should matter.",
        "wrong-order": "The first number belongs to the first window. In which order do you collect them?",
        "wrong-loss": "Every token of a window counts once. Which losses do you add, and by what do you divide?",
    },
)
def _accumulate_tokens(answer: Callable) -> str:
    for batches, n in _PLAIN:
        _judge_counts(answer, batches, n)
    _judge_counts(answer, _PLAIN[0][0], 2, dirty=True)
    for batches, n in _EMPTY:
        _judge_counts(answer, batches, n)
    for n in (2, 4):
        _judge_losses_while_learning(answer, n)
    for make_optimizer, n in ((sgd, 1), (sgd, 2), (sgd, 4), (adam, 2)):
        _judge_parameters(answer, _random_batches(), make_optimizer, n)
    full = [batch for batch in _random_batches() if _valid(batch).any()]  # an empty one may be kept until the next
    _judge_parameters(answer, full, sgd, 4, memory=True)
    return (
        "full and short windows, ragged words, masked beginnings, micro-batches and whole windows without a token, "
        "old gradients, SGD and Adam: every token counts as in the large batch."
    )


class _Reader(nn.Module):
    """Like a `Tally`, for cross-entropy: two scores per token, of which the first is a weight of its own."""

    def __init__(self, tokens: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(tokens, dtype=torch.float64))
        places = torch.arange(tokens, dtype=torch.float64)
        self.shift = 0.1 * (places % 7) - 0.3 + 0.06 * places  # so that the losses differ, also those of windows

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
    case = f"micro-batches of {counts} tokens, N = {n}"
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
    recorder, logged, how = Recorder(model.weight, optimizer, dirty), [], ""
    for _ in range(2):
        recorder.start_epoch()
        copies = [(inputs.clone(), targets.clone()) for inputs, targets in batches]
        logged.append(_read(answer(model, copies, optimizer, n)))
        how = how or changed(copies, batches, "the micro-batches")
    observed = recorder.observed(skip_idle=True)  # a step without gradients moves nothing
    observed.changed = how
    observed.rows = [row / slopes for row in observed.rows]
    expected.compare(observed, case, OLD / slopes if dirty else None)

    right = [float(row @ losses) for row in expected.rows[: len(expected.windows)]]
    means = [float(losses[expected.owner == place].mean()) for place in range(len(batches))]
    groups = [[means[place] for place in group] for group in expected.windows]
    for got in logged:
        _judge_losses(got, right, [sum(group) / len(group) for group in groups], case)


def _judge_losses(result: object, right: list[float], means_of_means: list[float], case: str) -> None:
    got = _numbers(result, len(right))
    case = f"{case}: the updates are right, but of the losses {rounded(right)} were expected, got {rounded(got)}"
    if any(map(isnan, got)):
        raise Mistake("nan", f"{case}. The mean over no token is 0/0, and 0 times NaN is NaN.")
    if len(got) != len(right):
        raise Mistake("wrong-length", f"{case}. Return one number per update.")
    since_start = [total / number for number, total in enumerate(accumulate(right), start=1)]
    known = (
        ("token-weights", "the mean of the micro-batches' means. Use the weights of the gradient", means_of_means),
        ("not-reset", "what was added up for the windows before is still in it", since_start),
        ("whole-epoch", "every number is the mean over the whole epoch", [since_start[-1]] * len(right)),
        ("wrong-order", "the losses come in reverse order", right[::-1]),
    )
    compare_losses(result, right, case, known, "wrong-loss", "it should be the mean loss over a window's tokens")


def _read(result: object) -> object:
    return result if isinstance(result, dict) else read_all(result, at_most=100)


def _numbers(result: object, expected: int) -> list[float]:
    return numbers(result, expected, "a list of losses, one per update (the updates are right)")


def _judge_losses_while_learning(answer: Callable, n: int) -> None:
    """With learning, so that a loss at other weights is another number."""
    batches, ours = _random_batches(), _model()
    theirs = copy.deepcopy(ours)
    groups = [_flat(window) for window in windows(batches, n) if any(_valid(batch).any() for batch in window)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=3.0) for model in (ours, theirs)]
    right, known = losses_of_large_batches(ours, optimizers[0], groups, _loss)
    result = _read(answer(theirs, list(batches), optimizers[1], n))
    got = _numbers(result, len(right))
    case = f"while the model learns, N = {n}: expected the losses {rounded(right)}, got {rounded(got)}"
    if len(got) != len(right):
        raise Mistake("wrong-length", f"{case}. Return one number per update.")
    hint = "take the loss of a micro-batch from the forward pass that its gradient comes from"
    compare_losses(result, right, case, known, "wrong-weights", hint)


def _random_batches() -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of three sequences, up to six targets long; three micro-batches have no valid target."""
    batches = []
    for lengths in ((6, 2, 4), (1, 1, 1), (0, 0, 0), (6, 6, 6), (6, 6, 6), (3, 6, 2), (0, 0, 0), (0, 0, 0), (5, 1, 2)):
        inputs, targets = torch.randint(5, (3, 6)), torch.randint(5, (3, 6))
        targets[torch.arange(6) >= torch.tensor(lengths)[:, None]] = IGNORED
        batches.append((inputs, targets))
    return batches


def _model() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 5)).double()


def _loss(model: nn.Module, flat: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(flat[0]), flat[1])


def _judge_parameters(
    answer: Callable, batches: list[tuple[Tensor, Tensor]], make_optimizer: Callable, n: int, memory: bool = False
) -> None:
    """Every parameter of a real model; and if `memory`, that one micro-batch's activations are there at a time."""

    def correct(model: nn.Module, optimizer: Optimizer) -> None:
        for window in [*windows(batches, n)] * 2:
            flat = _flat(window)
            if len(flat[1]):
                optimizer.zero_grad()
                _loss(model, flat).backward()
                optimizer.step()

    def learners(model: nn.Module, optimizer: Optimizer) -> None:
        for _ in range(2):
            _read(answer(model, list(batches), optimizer, n))

    one = alone(lambda model, optimizer: _read(answer(model, batches[:1], optimizer, 1))) if memory else None
    judge_model(learners, correct, _model(), make_optimizer, f"on a real model, N = {n}", one)
