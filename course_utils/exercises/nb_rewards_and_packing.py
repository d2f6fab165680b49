"""The exercise of *rewards and packing*: what every token of a window counts, under three published normalisations."""

from collections.abc import Callable

import torch
from torch import Tensor

from course_utils.exercises.bench import Exercise, Mistake, Seen, changed, edits, read_all, returned

WINDOWS = {  # micro-batches of answers: the group of each, and which of its positions count
    "four micro-batches": [[(0, "11"), (0, "1111")], [(1, "111"), (1, "1")], [(2, "11"), (2, "111")], [(0, "1")] * 2],
    "groups that are cut": [[(0, "11")], [(0, "1111"), (1, "111111"), (1, "1"), (0, "111")], [(2, "11"), (1, "1")]],
    "masked prompts": [[(3, "0011"), (3, "000111111")], [(7, "01"), (7, "0111"), (3, "00001")], [(7, "0011111")]],
    "masked answers": [[(0, "11"), (0, "000")], [(1, "1111"), (1, "11")], [(2, "00"), (0, "1"), (2, "0000")]],
    "nothing is left": [[(0, "000")], [(1, "00"), (1, "0")]],
}
CASES = {f"{kind!r}, {what}": (kind, what) for what in WINDOWS for kind in ("token", "sequence", "group")}


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


def _window(what: str) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches, padded to the longest answer of their own."""
    window = []
    for answers in WINDOWS[what]:
        width = max(len(counts) for _, counts in answers)
        mask = torch.tensor([[place == "1" for place in counts.ljust(width, "0")] for _, counts in answers])
        window.append((mask, torch.tensor([group for group, _ in answers])))
    return window


def watch(answer: Callable, case: str) -> Seen:
    kind, what = CASES[case]
    window = _window(what)
    got = returned(read_all(answer(window, kind), at_most=100), "a list of tensors")
    if not isinstance(got, (list, tuple)) or not all(isinstance(entry, Tensor) for entry in got):
        raise Mistake("wrong-type", f"{case}: expected a list with a tensor for each micro-batch, got {got!r}.")
    return {
        "shapes": [tuple(entry.shape) for entry in got],
        "all weights are finite": all(bool(entry.isfinite().all()) for entry in got),
        "input": changed(window, _window(what)),
        "how much a token counts": [entry.double() for entry in got],
    }


RETURN = "return [mask / own"
ALONE = "[solution([batch], kind)[0] for batch in window]"
SAME = "groups[:, None] == groups"
PLACE = "torch.cat([torch.full_like(own, place) for place, (_, own) in enumerate(window)])"
TOKEN_WEIGHTS = Exercise(
    "token_weights",
    "rewards_and_packing",
    watch,
    solution,
    cases=[*CASES],
    edits=[
        *edits("own-micro-batch", RETURN, f"return {ALONE}\n{RETURN}"),
        *edits("own-micro-batch", RETURN, f"return [w / len(window) for w in {ALONE}]\n{RETURN}"),
        *edits("by-n", RETURN, "return [mask / len(window) / own"),
        *edits("empty-answer", "lengths > 0", "lengths >= 0"),
        *edits("padding", "[mask.sum(1)", "[(mask | True).sum(1)"),
        *edits("split-groups", SAME, f"({SAME}) & ({SAME.replace('groups', PLACE)})"),
    ],
    channels={"shapes": "wrong-length", "all weights are finite": "nan"},
)
