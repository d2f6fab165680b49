"""What the runs of a script say about it: six checks by name, each on numbers that it measured, and four of the whole.

All gradients that are compared here come from runs with a learning rate of 0, so each is taken at the same weights, and
the gradient of an update must be a sum of those of its micro-batches. `shares` finds with which factors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

EXACT = 1e-10  # relative; what sums in another order differ by is below 1e-12, and no bug is as small
MICRO_BATCHES, WINDOW = 10, 4  # of an epoch; the last of its three windows is short
EPOCHS = 2


class Unreadable(Exception):
    """The runs do not fit together, so nothing can be said."""


@dataclass(frozen=True)
class Result:
    """What one check says; `passed` is None if it has not been made.

    Args:
        name: Of the check.
        passed: Whether the script passes it.
        says: What was measured.
    """

    name: str
    passed: bool | None
    says: str


@dataclass(frozen=True)
class Seen:
    """What a run of the script did, as `course_utils.project.watch` writes it.

    Args:
        gradients: The gradient that each step read, one row each.
        weights: At the end.
        forwards: How many forward passes ran in training.
        peak: The most bytes kept for backward at any time.
    """

    gradients: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    weights: Tensor = field(default_factory=lambda: torch.zeros(0))
    forwards: int = 0
    peak: int = 0


def shares(gradients: Tensor, of: Tensor) -> Tensor:
    """With which factors each gradient is a sum of others: one row per gradient, one column per other.

    A row is NaN if its gradient is no such sum, to 6 digits.

    Args:
        gradients: One gradient per row.
        of: The gradients of the micro-batches, one per row, at the same weights.

    Example:
        >>> shares(torch.tensor([[2.0, 3.0, 0.0], [0.0, 0.0, 1.0]]), of=torch.eye(3)[:2]).tolist()
        [[2.0, 3.0], [nan, nan]]
    """
    found = torch.linalg.lstsq(of.T, gradients.T).solution.T
    off = (found @ of - gradients).norm(dim=1) / gradients.norm(dim=1).clamp(min=1e-300)
    return found.where(off[:, None] < 1e-6, torch.nan)


def shares_in_epochs(gradients: Tensor, of: Tensor) -> Tensor:
    """The shares of all micro-batches in each update.

    An update is made of its epoch's micro-batches, and perhaps of what the short window before has left. (All of two
    epochs at once would say nothing: they hold the same words, so their gradients depend on each other.)

    Args:
        gradients: One gradient per update, in windows or in large batches.
        of: The gradients of the micro-batches of all epochs.

    Raises:
        Unreadable: If the first update is no sum of the first epoch's gradients.
    """
    table, short = torch.full((len(gradients), len(of)), torch.nan), MICRO_BATCHES % WINDOW
    table = table.to(of.dtype)
    for epoch in reversed(range(len(of) // MICRO_BATCHES)):
        columns = list(range(max(0, MICRO_BATCHES * epoch - short), MICRO_BATCHES * (epoch + 1)))
        rows = shares(gradients, of[columns])
        known = ~rows[:, 0].isnan()
        table[known] = 0.0
        table[known.nonzero(), torch.tensor(columns)] = rows[known]
    if bool(table[: MICRO_BATCHES // WINDOW].isnan().any()):
        raise Unreadable(
            "the first updates' gradients are not made of those of the micro-batches. The same words must come in the "
            "same order whatever --window and --micro-batch are, and nothing may be random in a forward pass"
        )
    return table


def windows_of(micro_batches: int, n: int, epochs: int) -> list[list[int]]:
    """The places of the micro-batches that each update should use.

    Example:
        >>> windows_of(3, 2, epochs=2)
        [[0, 1], [2], [3, 4], [5]]
    """
    places = [list(range(micro_batches * e, micro_batches * (e + 1))) for e in range(epochs)]
    return [epoch[start : start + n] for epoch in places for start in range(0, micro_batches, n)]


def memory(single: Seen, window: Seen) -> Result:
    """Does a window keep more for backward than one micro-batch does?"""
    times = window.peak / max(single.peak, 1)
    says = f"a window keeps {window.peak / 1e6:.1f} MB for backward, its largest micro-batch {single.peak / 1e6:.1f} MB"
    return Result("memory", times < 1.25, says)


def division(table: Tensor, large: Tensor) -> Result:
    """Do the shares of a full window add up to 1?"""
    sums = [float(row.sum()) for row in (*table[: MICRO_BATCHES // WINDOW], large[0])]
    bad = [total for total in sums if abs(total - 1) > EXACT]
    if bad and bad == sums[-1:]:
        return Result(
            "division", False, f"the gradient of one batch of {WINDOW} micro-batches is {bad[0]:.3g} times their mean"
        )
    says = ", ".join(f"{total:.3g}" for total in sums[:-1])
    return Result("division", not bad, f"in the full windows the shares add up to {says}; those of a mean, to 1")


def tail(table: Tensor, updates: int) -> Result:
    """Does the short window at the end of an epoch get an update of its own, with shares as a full one has?"""
    wanted, full = windows_of(MICRO_BATCHES, WINDOW, EPOCHS), MICRO_BATCHES // WINDOW
    if updates != len(wanted):
        short = wanted[full]
        later = bool((table[full:, short].abs() > EXACT).any())
        names = " and ".join(f"{place + 1}" for place in short)
        where = "are in an update of the second" if later else "are in none of them"
        says = f"{updates} updates instead of {len(wanted)} in {EPOCHS} epochs"
        return Result("tail", False, f"{says}; micro-batches {names} of the first epoch {where}")
    for number, (row, places) in enumerate(zip(table, wanted, strict=True), start=1):
        inside, total = float(row[places].abs().sum()), float(row.sum())
        if not float(row.abs().sum()) - inside <= EXACT * inside:
            return Result("tail", False, f"update {number} is not made of its own window's micro-batches alone")
        if len(places) < WINDOW and abs(float(table[0].sum()) - 1) < EXACT and abs(total - 1) > EXACT:
            return Result("tail", False, f"in the short window the shares add up to {total:.3g}; those of a mean, to 1")
    says = f"{updates} updates in {EPOCHS} epochs, the last of each of {len(places)} micro-batches"
    return Result("tail", True, says)


def tokens(table: Tensor, large: Tensor) -> Result:
    """Does a micro-batch count by its tokens, as in the large batch?"""
    full = MICRO_BATCHES // WINDOW
    found, want = (rows[:full] / rows[:full].sum(dim=1, keepdim=True) for rows in (table, large))
    off = float((found - want).abs().max())
    places = range(WINDOW)
    row = ", ".join(f"{found[0, place]:.3f}" for place in places)
    right = ", ".join(f"{want[0, place]:.3f}" for place in places)
    return Result("tokens", off < EXACT, f"the shares in update 1 are {row}; in one large batch, {right}")


def scaler(clipped: Tensor, limit: float) -> Result:
    """Does clipping limit the gradient, or the gradient times the scale?"""
    norms = [float(row.norm()) for row in clipped]
    worst = max(norms, key=lambda norm: abs(norm - limit))
    says = f"with --clip {limit:.3g}, which every norm exceeds, a norm of {worst:.3g} reaches the step"
    return Result("scaler", abs(worst / limit - 1) < 1e-3, says)


def resume(whole: Seen, resumed: Seen, killed_at: int) -> Result:
    """Does a run that was killed in mid-window end where one ends that was not?"""
    began = MICRO_BATCHES * EPOCHS - resumed.forwards
    place = f"killed at micro-batch {killed_at}, it goes on after {began}"
    if began <= 0:
        return Result("resume", False, f"killed at micro-batch {killed_at}, it begins again from the first")
    off = _apart(resumed.weights, whole.weights)
    return Result("resume", off < 1e-9, f"{place}; at the end the weights differ by {off:.1e}")


def exact(gradients: Tensor, large: Tensor, trained: Seen, trained_large: Seen) -> Result:
    """Is every update the large batch's, and do the weights end where the large batches lead?"""
    if gradients.shape != large.shape:
        return Result("exact", False, f"{len(gradients)} updates, and {len(large)} of the large batches")
    off = float(((gradients - large).norm(dim=1) / large.norm(dim=1)).max())
    apart = _apart(trained.weights, trained_large.weights)
    says = f"{len(gradients)} updates differ from the large batches' by at most {off:.1e}"
    return Result("exact", off < EXACT and apart < 1e-9, f"{says}; after training, the weights by {apart:.1e}")


def ranks(of_ranks: Sequence[Seen], large: Tensor) -> Result:
    """Do two ranks make the updates that one makes?"""
    off = max(_apart(seen.gradients, large) for seen in of_ranks) / float(large.abs().max())
    says = f"on {len(of_ranks)} ranks the updates differ from one rank's by {off:.1e}"
    ask = "" if off < EXACT else ". By what does a rank divide its losses, and by what does DDP divide?"
    return Result("ranks", off < EXACT, says + ask)


def audit(status: int, findings: Sequence[dict]) -> Result:
    """Has the auditor named an error?"""
    levels = [f"{finding['rule']} ({finding['level']})" for finding in findings]
    says = f"gradaudit found {', '.join(levels) or 'nothing'} (exit status {status})"
    return Result("audit", status == 0, says)


def loss(held_out: float, bigrams: float) -> Result:
    """Does the model spell better than pairs of letters do?"""
    return Result(
        "loss", held_out < bigrams, f"{held_out:.2f} per letter on words not seen; the bigrams have {bigrams:.2f}"
    )


def _apart(found: Tensor, wanted: Tensor) -> float:
    """The largest difference; infinite if the two are of different sizes or not numbers."""
    if found.shape != wanted.shape:
        return float("inf")
    off = float((found - wanted).abs().max())
    return off if off == off else float("inf")
