"""Two records side by side: which moment of one belongs to which moment of the other."""

from difflib import SequenceMatcher
from itertools import groupby

from course_utils.recording.stepping import Steps


def moments(tracks: list[Steps]) -> list[tuple[int, ...]]:
    """The moments of one record, or of two, as the places of their frames.

    Two records come to the same micro-batch together: each micro-batch begins with its backward pass. Within it, equal
    lines of the two loops belong together, and where one loop has a line that the other lacks, the other waits.

    Args:
        tracks: One record or two.
    """
    if len(tracks) == 1:
        return [(place,) for place in range(len(tracks[0].frames))]
    first, second = map(_by_micro_batch, tracks)
    pairs = []
    for number in range(max(len(first), len(second))):
        one, other = (parts[number] if number < len(parts) else [] for parts in (first, second))
        pairs += _paired(tracks, one, other, pairs[-1] if pairs else (0, 0))
    last = tuple(len(steps.frames) - 1 for steps in tracks)
    return pairs if pairs[-1] == last else [*pairs, last]


def _by_micro_batch(steps: Steps) -> list[list[int]]:
    """The frames' places, parted before each backward pass; the last frame, which is the end, comes extra."""
    number, parts = 0, []
    for place, frame in enumerate(steps.frames[:-1]):
        number += frame.kind == "backward"
        parts.append((number, place))
    return [[place for _, place in part] for _, part in groupby(parts, key=lambda pair: pair[0])]


def _paired(tracks: list[Steps], one: list[int], other: list[int], before: tuple[int, int]) -> list[tuple[int, int]]:
    keys = [
        [(steps.frames[place].kind, steps.loop.lines[steps.frames[place].line - 1].strip()) for place in places]
        for steps, places in zip(tracks, (one, other), strict=True)
    ]
    pairs, (a, b) = [], before
    for _, i, i_end, j, j_end in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        for k in range(max(i_end - i, j_end - j)):
            a = one[i + k] if i + k < i_end else a
            b = other[j + k] if j + k < j_end else b
            pairs.append((a, b))
    return pairs
