"""The exercise of *rewards and packing*: a token's weight under three published normalisations."""

import torch
from torch import Tensor

from course_utils.exercises.judging import CHANGED_INPUT, changed, exercise, read_all, returned, same, wrong_type

WINDOWS = {  # micro-batches of answers: the group of each, and which of its positions count
    "four micro-batches": [[(0, "11"), (0, "1111")], [(1, "111"), (1, "1")], [(2, "11"), (2, "111")], [(0, "1")] * 2],
    "groups that are cut": [[(0, "11")], [(0, "1111"), (1, "111111"), (1, "1"), (0, "111")], [(2, "11"), (1, "1")]],
    "masked prompts": [[(3, "0011"), (3, "000111111")], [(7, "01"), (7, "0111"), (3, "00001")], [(7, "0011111")]],
    "masked answers": [[(0, "11"), (0, "000")], [(1, "1111"), (1, "11")], [(2, "00"), (0, "1"), (2, "0000")]],
    "nothing is left": [[(0, "000")], [(1, "00"), (1, "0")]],
}
NAN = "nan", "", "An answer without a token has nothing to divide. What does your formula divide by there?"
SHAPES = "wrong-length", "", "One tensor for each micro-batch, as large as its mask."
OTHER = "wrong-value", "", "Which tokens, answers and groups does the formula count, and in which micro-batches?"


def made(what):
    """A window of micro-batches, each padded to its longest answer."""
    for answers in WINDOWS[what]:
        width = max(len(counts) for _, counts in answers)
        mask = torch.tensor([[place == "1" for place in counts.ljust(width, "0")] for _, counts in answers])
        yield mask, torch.tensor([group for group, _ in answers])


def weights(window, kind):
    lengths = torch.cat([mask.sum(1) for mask, _ in window])
    groups = torch.cat([groups for _, groups in window])
    divisors = {
        "token": lengths.sum().expand_as(lengths),
        "sequence": (lengths > 0).sum() * lengths,
        "group": len(groups[lengths > 0].unique()) * ((groups[:, None] == groups) * lengths).sum(1),
    }[kind].clamp(min=1)
    pairs = zip(window, divisors.split([len(mask) for mask, _ in window]), strict=True)
    return [mask / own[:, None].double() for (mask, _), own in pairs]


@exercise
def token_weights(answer):
    for what, kind in ((what, kind) for what in WINDOWS for kind in ("token", "sequence", "group")):
        case, given, window = f"{kind!r}, {what}", [*made(what)], [*made(what)]
        got = returned(read_all(answer(given, kind), at_most=100), "a list of tensors")
        if not isinstance(got, list | tuple) or not all(isinstance(entry, Tensor) for entry in got):
            raise wrong_type(f"{case}: expected a list with a tensor for each micro-batch, got {got!r}.")
        got, right = [entry.double() for entry in got], weights(window, kind)
        same(f"{case}: shapes", [tuple(entry.shape) for entry in got], [tuple(entry.shape) for entry in right], SHAPES)
        same(f"{case}: NaN or infinite", [not entry.isfinite().all() for entry in got], [False] * len(right), NAN)
        same("input", changed(given, window), "", CHANGED_INPUT)
        positions = weights([(torch.ones_like(mask), groups) for mask, groups in window], kind)
        padding = [own * mask for own, (mask, _) in zip(positions, window, strict=True)]
        alone = [weights([batch], kind)[0] for batch in window]
        hint = "Which numbers must be known before the first micro-batch? Count over the window: Step 2."
        same(f"{case}: how much a token counts", got, right, OTHER, wrong=[
            ("own-micro-batch", alone, "", hint),
            ("own-micro-batch", [own / len(window) for own in alone], "", hint),
            ("by-n", [own / len(window) for own in right], "", "Is there a number of micro-batches in the formula?"),
            ("padding", padding, "", "Count what the mask lets through, and not the positions."),
        ])  # fmt: skip
    return (
        "windows of several micro-batches, ragged ones, groups that are cut, masked prompts, answers that are masked "
        "out and a window with nothing left: every token counts as in one large batch."
    )
