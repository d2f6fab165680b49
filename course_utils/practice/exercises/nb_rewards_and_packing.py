"""The exercise of *rewards and packing*: what every token of a window counts, under three published normalisations."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.practice.bench import Exercise, Mistake, Seen, changed, edits, read_all, returned

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


class Case(NamedTuple):
    what: str
    answers: Sequence[tuple[int, str]]
    sizes: Sequence[int]
    kind: str

    def __str__(self) -> str:
        lengths = [mask.sum(1).tolist() for mask, _ in self.window]
        return f"{self.kind!r}, answers of {lengths} tokens ({self.what})"

    @property
    def window(self) -> Window:
        """Micro-batches of so many answers each, padded to the longest of their own."""
        ends, window = [0, *accumulate(self.sizes)], []
        for start, end in pairwise(ends):
            some = self.answers[start:end]
            width = max(len(counts) for _, counts in some)
            mask = torch.tensor([[place == "1" for place in counts.ljust(width, "0")] for _, counts in some])
            window.append((mask, torch.tensor([group for group, _ in some])))
        return window


def solution(window, kind):
    lengths = torch.cat([mask.sum(1) for mask, _ in window])
    groups = torch.cat([groups for _, groups in window])
    some = lengths > 0
    if kind == "token":
        divisors = lengths.sum().expand_as(lengths)
    elif kind == "sequence":
        divisors = some.sum() * lengths
    else:
        same = groups[:, None] == groups
        divisors = len(groups[some].unique()) * (same * lengths).sum(1)
    divisors = divisors.clamp(min=1).split([len(mask) for mask, _ in window])
    pairs = zip(window, divisors, strict=True)
    return [mask / own.double()[:, None] for (mask, _), own in pairs]


def alone(window, kind):
    """Each micro-batch by itself."""
    return [solution([batch], kind)[0] for batch in window]


def watch(answer: Callable, case: Case) -> Seen:
    window = case.window
    got = returned(read_all(answer(window, case.kind), at_most=100), "a list of tensors")
    if not isinstance(got, (list, tuple)) or not all(isinstance(entry, Tensor) for entry in got):
        raise Mistake("wrong-type", f"{case}: expected a list of tensors, got {type(got).__name__}.")
    return {
        "shapes": [tuple(entry.shape) for entry in got],
        "all weights are finite": all(bool(entry.isfinite().all()) for entry in got),
        "input": changed(window, case.window),
        "how much a token counts": [entry.double() for entry in got],
    }


LAST, SOME, KIND = (
    "mask / own.double()[:, None] for (mask, _), own in pairs",
    "some = lengths > 0",
    "lengths = torch.cat(",
)
TOKEN_WEIGHTS = Exercise(
    "token_weights",
    "rewards_and_packing",
    watch,
    solution,
    cases=[Case(*case, kind) for case in _CASES for kind in KINDS],
    edits=[
        *edits("own-micro-batch", f"return [{LAST}]", "return [w / len(window) for w in alone(window, kind)]"),
        *edits("own-micro-batch", f"return [{LAST}]", "return alone(window, kind)"),
        *edits("by-n", LAST, f"({LAST.replace(' for', ') / len(window) for', 1)}"),
        *edits("empty-answer", SOME, "some = lengths >= 0"),
        *edits("empty-answer/one-token", SOME, SOME + "; lengths = lengths.clamp(min=1)"),
        *edits("padding", KIND, "lengths = torch.cat([(mask | True).sum(1) for mask, _ in window])\ntorch.cat("),
        *edits("masked-positions", LAST, LAST.replace("mask /", "mask.any(1, True).expand_as(mask) /")),
        *edits("inverted", LAST, LAST.replace("mask /", "mask *")),
        *edits(
            "split-groups",
            f"return [{LAST}]",
            "each, many = zip(alone(window, kind), window), len(groups.unique())\n"
            "return [w * len(g.unique()) / many for w, (_, g) in each]",
        ),
        *edits("split-groups/two", "len(groups[some].unique())", "sum(len(g.unique()) for _, g in window)"),
        *edits("other-kind", KIND, *(f"kind = {kind!r}\n{KIND}" for kind in KINDS)),
    ],
    channels={"shapes": "wrong-length", "all weights are finite": "nan"},
)
