"""What is read from gradients alone, here from some of which every share is known."""

import pytest
import torch

from course_utils.project.accept import CannotJudge, what_updates_hold

TOKENS = [5.0, 6, 7, 8, 5, 6, 7, 8, 6, 7] * 2
ALONE = torch.randn(len(TOKENS), 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WINDOWS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
FULL = [window for window in WINDOWS if len(window) == 4]
STALE = [sum(WINDOWS[: k + 1], []) for k in range(len(WINDOWS))]  # noqa: RUF017
CARRIED = [*FULL[:2], [8, 9, *FULL[2]], FULL[3]]


def updates(share, windows=WINDOWS):
    """The gradients of updates, from `share(index, window)` of each micro-batch."""
    return torch.stack([sum(share(index, window) * ALONE[index] for index in window) for window in windows])


def by_tokens(index, window):
    return TOKENS[index] / sum(TOKENS[p] for p in window)


def failed(gradients, single=ALONE, large=updates(by_tokens)):  # noqa: B008
    return {name: says for name, passed, says in what_updates_hold(single, gradients, large) if not passed}


@pytest.mark.parametrize(
    ("share", "windows", "names"),
    [
        (by_tokens, WINDOWS, []),
        (lambda index, window: 1.0, FULL, ["division", "tail", "tokens"]),
        (lambda index, window: 1.0, CARRIED, ["division", "tail", "tokens"]),
        (lambda index, window: 1.0, WINDOWS, ["division", "tokens"]),
        (lambda index, window: 1 / 4, FULL, ["tail", "tokens"]),
        (lambda index, window: 1 / 4, WINDOWS, ["tail", "tokens"]),
        (lambda index, window: 1 / len(window), WINDOWS, ["tokens"]),
        (lambda index, window: 4 * by_tokens(index, window), FULL, ["division", "tail"]),
        (lambda index, window: by_tokens(index, window) / 4, WINDOWS, ["division"]),
        (lambda index, window: TOKENS[index] / 26, STALE, ["division", "tail", "tokens"]),
        (by_tokens, FULL, ["tail"]),
        (by_tokens, [*FULL[:2], [8, 9, 10, 11], *WINDOWS[3:]], ["tail"]),
    ],
)
def test_division_tail_and_tokens_are_told_apart(share, windows, names):
    assert list(failed(updates(share, windows))) == names


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [(updates(by_tokens) + 0.1, "same order"), (ALONE[:1], "20 updates with --window 1 and 1 with")],
)
def test_gradients_that_no_shares_explain_cannot_be_read(spoiled, says):
    with pytest.raises(CannotJudge, match=says):
        failed(spoiled)
