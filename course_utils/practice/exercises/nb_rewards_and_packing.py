"""The exercise of *rewards and packing*: what every token of a window counts, under three published normalisations."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, close, compare, read_all

KINDS = ("token", "sequence", "group")

# An answer is the pair (its group, which of its positions count); a micro-batch is so many of the next answers.
_ALL = ("all count", [(0, "11"), (0, "1111"), (1, "111111"), (1, "1"), (0, "111"), (2, "11111"), (2, "11"), (2, "1")])
_PROMPTS = ("prompts are masked", [(3, "0011"), (3, "000111111"), (7, "01"), (7, "0111"), (3, "00001"), (7, "0011111")])
_EMPTY = ("an answer is masked out", [(0, "11"), (0, "000"), (1, "1111"), (1, "11"), (2, "00"), (0, "1"), (2, "0000")])
_NONE = ("everything is masked out", [(0, "000"), (1, "00"), (1, "0")])
_CASES = (
    (*_ALL, (8,)),
    (*_ALL, (2, 2, 2, 2)),
    (*_ALL, (1, 4, 3)),
    (*_ALL, (3, 3, 2)),
    (*_PROMPTS, (2, 2, 2)),
    (*_PROMPTS, (1, 1, 1, 2, 1)),
    (*_EMPTY, (7,)),
    (*_EMPTY, (1, 1, 2, 3)),
    (*_EMPTY, (3, 2, 2)),
    (*_NONE, (1, 2)),
)

Window = list[tuple[Tensor, Tensor]]


@exercise(
    "token_weights",
    hints={
        "own-micro-batch": "Which numbers must be known before the first micro-batch? Count over the window: Step 2.",
        "by-n": "Every formula divides once. Is there still a number of micro-batches in yours?",
        "empty-answer": "Which answers are in the published sum? One without a token is not.",
        "padding": "Count what the mask lets through, and not the positions.",
        "masked-positions": "What should the weight of a position be whose loss does not count?",
        "split-groups": "A group may be cut. Where do you count its tokens, and where the groups?",
        "other-kind": "Print the weights for each of the three kinds. Which of them are equal?",
        "inverted": "A weight multiplies a loss. What did you return for an answer of 10 tokens?",
        "nan": "An answer without a token has nothing to divide. What does your formula divide by there?",
        "wrong-length": "One tensor for each micro-batch, as large as its mask.",
    },
)
def _token_weights(answer: Callable) -> str:
    for what, answers, sizes in _CASES:
        for kind in KINDS:
            _judge(answer, _window(answers, sizes), kind, what)
    return (
        "windows of one and of several micro-batches, ragged ones, groups that are cut, masked prompts, answers that "
        "are masked out and a window with nothing left: every token counts as in one large batch."
    )


def _window(answers: Sequence[tuple[int, str]], sizes: Sequence[int]) -> Window:
    """Micro-batches of so many answers each, padded to the longest of their own."""
    ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    window = []
    for start, end in pairwise(ends):
        some = answers[start:end]
        width = max(len(counts) for _, counts in some)
        mask = torch.tensor([[place == "1" for place in counts.ljust(width, "0")] for _, counts in some])
        window.append((mask, torch.tensor([group for group, _ in some])))
    return window


def _weights(window: Window, kind: str, counts_empty: bool = False) -> list[Tensor]:
    """How much every token counts; if `counts_empty`, masked answers and groups count as answers and groups."""
    lengths = torch.cat([mask.sum(1) for mask, _ in window])
    groups = torch.cat([groups for _, groups in window])
    there = (lengths > 0) | counts_empty
    if kind == "token":
        divisors = lengths.sum().expand_as(lengths)
    elif kind == "sequence":
        divisors = there.sum() * lengths
    else:
        divisors = len(groups[there].unique()) * ((groups[:, None] == groups) * lengths).sum(1)
    each = divisors.double().clamp(min=1).split([len(mask) for mask, _ in window])
    return [mask / own[:, None] for (mask, _), own in zip(window, each, strict=True)]


def _known(window: Window, kind: str) -> list[tuple[str, str, list[Tensor]]]:
    """What the usual slips give for a window."""
    right, n = _weights(window, kind), len(window)
    alone = [_weights([batch], kind)[0] for batch in window]
    filled = [torch.where(mask, own, own.amax(1, keepdim=True)) for (mask, _), own in zip(window, right, strict=True)]
    positions = [(torch.ones_like(mask), groups) for mask, groups in window]
    by_positions = [own * mask for own, (mask, _) in zip(_weights(positions, kind), window, strict=True)]
    known = [
        ("own-micro-batch", "each micro-batch is divided by its own numbers and by N", [w / n for w in alone]),
        ("own-micro-batch", "each micro-batch is divided by its own numbers", alone),
        ("by-n", "every weight is N times too small", [w / n for w in right]),
        ("by-n", "every weight is N times too large", [w * n for w in right]),
        ("empty-answer", "an answer without a token counts as an answer, or its group as one",
         _weights(window, kind, counts_empty=True)),
        ("padding", "positions are counted, also those that are masked", by_positions),
        ("masked-positions", "masked positions have a weight", filled),
        ("inverted", "these are the divisors, not the weights", [torch.where(w > 0, 1 / w, w) for w in right]),
    ]  # fmt: skip
    if kind == "group":
        groups = len(torch.cat([groups for _, groups in window]).unique())
        per_part = [w * len(g.unique()) / groups for w, (_, g) in zip(alone, window, strict=True)]
        parts = sum(len(g.unique()) for _, g in window)
        by_parts = [w * groups / parts for w in right]
        known.append(("split-groups", "the tokens of a group are counted in each micro-batch alone", per_part))
        known.append(("split-groups", "a group in two micro-batches is counted as two", by_parts))
    if kind == "token":
        total = sum(mask.sum(1).clamp(min=1).sum() for mask, _ in window)
        known.append(("empty-answer", "an answer without a token counts as one token", [m / total for m, _ in window]))
    known += [("other-kind", f"these are the weights of {other!r}", _weights(window, other)) for other in KINDS]
    return known


def _judge(answer: Callable, window: Window, kind: str, what: str) -> None:
    given = [(mask.clone(), groups.clone()) for mask, groups in window]
    got = read_all(answer(given, kind), at_most=100)
    lengths = [mask.sum(1).tolist() for mask, _ in window]
    case = f"{kind!r}, answers of {lengths} tokens ({what})"
    if got is None or got is Ellipsis:
        raise Mistake("not-attempted", f"{case}: your function returned {got}; it should return a list of tensors.")
    if not isinstance(got, (list, tuple)) or not all(isinstance(entry, Tensor) for entry in got):
        raise Mistake("wrong-type", f"{case}: expected a list of tensors, got {type(got).__name__}.")
    shapes = [tuple(mask.shape) for mask, _ in window]
    if [tuple(entry.shape) for entry in got] != shapes:
        raise Mistake("wrong-length", f"{case}: expected tensors of {shapes}, got {[tuple(w.shape) for w in got]}.")
    if any(not entry.isfinite().all() for entry in got):
        raise Mistake("nan", f"{case}: some weights are NaN or infinite.")
    if how := changed(given, window, "the window"):
        raise Mistake("changed-input", f"{case}: {how}.")
    right = _weights(window, kind)
    got = [entry.double() for entry in got]
    if close(got, right):
        return
    shown = [[round(float(row.max()), 4) for row in entry] for entry in got]
    expected = [[round(float(row.max()), 4) for row in entry] for entry in right]
    message = f"{case}: a token of each answer should count {expected}, and counts {shown}"
    compare(got, right, message, _known(window, kind))
