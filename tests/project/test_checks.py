"""The checks alone, on gradients of which every share is known."""

import pytest
import torch

from course_utils.project import checks
from course_utils.project.checks import EPOCHS, MICRO_BATCHES, WINDOW, Seen, shares_in_epochs, windows_of

WINDOWS = windows_of(MICRO_BATCHES, WINDOW, EPOCHS)
TOKENS = [5.0, 6, 7, 8, 5, 6, 7, 8, 6, 7] * EPOCHS
ALONE = torch.randn(len(TOKENS), 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ALONE[-1] = (sum(t * g for t, g in zip(TOKENS[:10], ALONE[:10], strict=True)) -
             sum(t * g for t, g in zip(TOKENS[10:19], ALONE[10:19], strict=True))) / TOKENS[-1]  # fmt: skip


def updates(share, windows=WINDOWS):
    """The gradients of updates, from `share(place, window)` of each micro-batch."""
    return torch.stack([sum(share(place, window) * ALONE[place] for place in window) for window in windows])


def by_tokens(place, window):
    return TOKENS[place] / sum(TOKENS[p] for p in window)


LARGE = shares_in_epochs(updates(by_tokens), ALONE)


def failed(gradients):
    table = shares_in_epochs(gradients, ALONE)
    results = checks.division(table, LARGE), checks.tail(table, len(gradients)), checks.tokens(table, LARGE)
    return [result.name for result in results if not result.passed]


def test_the_shares_of_two_epochs_are_found_although_their_gradients_depend_on_each_other():
    assert torch.linalg.matrix_rank(ALONE) == len(ALONE) - 1
    want = [[by_tokens(p, window) if p in window else 0.0 for p in range(len(TOKENS))] for window in WINDOWS]
    assert torch.allclose(LARGE, torch.tensor(want, dtype=torch.float64), atol=1e-12)


FULL = [window for window in WINDOWS if len(window) == WINDOW]
CARRIED = [*FULL[:2], [8, 9, *FULL[2]], FULL[3]]


@pytest.mark.parametrize(
    ("share", "windows", "names"),
    [
        (by_tokens, WINDOWS, []),
        (lambda place, window: 1.0, FULL, ["division", "tail", "tokens"]),
        (lambda place, window: 1.0, CARRIED, ["division", "tail", "tokens"]),
        (lambda place, window: 1.0, WINDOWS, ["division", "tokens"]),
        (lambda place, window: 1 / WINDOW, FULL, ["tail", "tokens"]),
        (lambda place, window: 1 / WINDOW, WINDOWS, ["tail", "tokens"]),
        (lambda place, window: 1 / len(window), WINDOWS, ["tokens"]),
        (lambda place, window: WINDOW * by_tokens(place, window), FULL, ["division", "tail"]),
        (lambda place, window: by_tokens(place, window) / WINDOW, WINDOWS, ["division"]),
        (by_tokens, FULL, ["tail"]),
        (by_tokens, [*FULL[:2], [8, 9, 10, 11], *WINDOWS[3:]], ["tail"]),
    ],
)
def test_division_tail_and_tokens_are_told_apart(share, windows, names):
    assert failed(updates(share, windows)) == names


def test_a_tail_that_enters_the_next_epoch_is_told_from_one_that_is_lost():
    for windows, says in ((CARRIED, "are in an update of the second"), (FULL, "are in none of them")):
        gradients = updates(by_tokens, windows)
        assert says in checks.tail(shares_in_epochs(gradients, ALONE), len(gradients)).says


def test_a_sum_over_tokens_is_no_mean_in_a_large_batch_either():
    own = ALONE * torch.tensor(TOKENS, dtype=torch.float64)[:, None]  # what each micro-batch has alone, undivided
    table = shares_in_epochs(updates(lambda place, window: TOKENS[place] / WINDOW), own)
    large = shares_in_epochs(updates(lambda place, window: TOKENS[place]), own)
    result = checks.division(table, large)
    assert not result.passed
    assert "4 times their mean" in result.says


def test_gradients_that_no_shares_explain_cannot_be_read():
    with pytest.raises(checks.Unreadable, match="same order"):
        shares_in_epochs(updates(by_tokens) + 0.1, ALONE)


def test_memory_scaler_and_resume():
    assert checks.memory(Seen(peak=100), Seen(peak=110)).passed
    assert not checks.memory(Seen(peak=100), Seen(peak=240)).passed
    assert checks.scaler(torch.tensor([[0.3, 0.4], [0.5, 0.0]]), 0.5).passed
    for row in ([0.3e-4, 0.4e-4], [3.0, 4.0], [float("nan"), 0.0]):
        assert not checks.scaler(torch.tensor([row, [0.3, 0.4]]), 0.5).passed
    whole = Seen(weights=torch.ones(3), forwards=20)
    assert checks.resume(whole, Seen(weights=torch.ones(3), forwards=6), 17).passed
    for weights, forwards, says in (
        (torch.zeros(3), 4, "differ by 1.0e+00"),
        (torch.ones(3), 20, "begins again from the first"),
        (torch.zeros(0), 0, "differ by inf"),
        (torch.full((3,), float("nan")), 4, "differ by inf"),
    ):
        result = checks.resume(whole, Seen(weights=weights, forwards=forwards), 17)
        assert not result.passed
        assert says in result.says


def test_exact_ranks_audit_and_loss():
    ones = torch.ones(2, 3)
    assert checks.exact(ones, ones, Seen(weights=ones[0]), Seen(weights=ones[0])).passed
    assert not checks.exact(ones, ones + 1e-6, Seen(weights=ones[0]), Seen(weights=ones[0])).passed
    assert not checks.exact(ones, ones, Seen(weights=ones[0]), Seen(weights=ones[0] + 1e-6)).passed
    assert not checks.exact(ones, ones[:1], Seen(), Seen()).passed
    assert checks.ranks([Seen(gradients=ones)] * 2, ones).passed
    assert not checks.ranks([Seen(gradients=ones), Seen(gradients=ones[:1])], ones).passed
    assert checks.audit(0, [{"rule": "token-weights", "level": "undecided"}]).passed
    assert not checks.audit(1, [{"rule": "loss-scale", "level": "error"}]).passed
    assert checks.loss(2.1, 2.4).passed
    assert not checks.loss(float("nan"), 2.4).passed
