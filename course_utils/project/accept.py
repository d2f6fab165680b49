"""Judges a training script by what its runs do: six checks by name, then four of the whole.

Most runs have a learning rate of 0, so all their gradients are taken at the same weights, and the
gradient of an update must be a sum of those of its micro-batches. `shares` finds with which
factors. Large batches, which the script makes itself with `--window 1` and four times the words in
a micro-batch, say with which factors it should be.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.project.text import bigram_loss, read_words
from course_utils.ranks.script import TORCHRUN, last_words, run_python

Result = tuple[str, bool, str]  # a check's name, whether it passes, and what it says

WINDOW, MICRO_BATCHES, EPOCHS = 4, 10, 2  # of an epoch; the last of its three windows is short
FULL = MICRO_BATCHES // WINDOW
# 16 words in a micro-batch, but 12 in the last one. If an argument comes twice, the last counts.
SETTING = f"--words 156 --epochs {EPOCHS} --micro-batch 16 --window 4 --precision float64".split()
TRIAL = [*SETTING, "--lr", "0", "--clip", "1e9"]
LARGE = [*TRIAL, "--micro-batch", "64", "--window", "1"]
TRAINING = ["--lr", "0.02", "--clip", "0.5"]
CLIP = 0.1  # the norm of every update exceeds it at the first weights
KILLED_AT = 4  # in the second epoch, whether or not the short windows have updates
LIMIT = 300.0  # seconds for each process
LEARNED = 16160  # the words of the run that has to beat the bigrams
EXACT = 1e-10  # relative; sums in another order differ by less than 1e-12


class CannotJudge(Exception):
    """The script does not run, or its runs do not fit together."""


class Runs(NamedTuple):
    """Runs one script again and again, and reads from a folder what the runs did."""

    script: Path
    folder: Path

    def watched(self, *runs: list[str], kill: int = 0) -> list[object]:
        """The command that watches some runs, one after the other in one process."""
        return ["-m", "course_utils.project.watch", self.folder / "seen", kill, self.script, json.dumps(runs)]

    def seen(self, rank: int = 0) -> list[SimpleNamespace]:
        """What the runs did: see `watch`."""
        return [SimpleNamespace(**seen) for seen in torch.load(self.folder / f"seen{rank}")]

    def run(self, title: str, *command: object, fine: int = 0) -> int:
        """Runs a command; its exit status must be 0, or another one that is fine."""
        status, output, late = run_python(*command, title=title, limit=LIMIT, cwd=self.script.parent)
        if late or status not in (0, fine):
            ended = f"had not ended after {LIMIT:g} s" if late else f"ended with status {status}"
            raise CannotJudge(f"'{title}' {ended}. The end of what it printed:\n{output[-3000:]}")
        return status


def accept(script: str | Path) -> Iterator[Result]:
    """Judges a training script that takes the arguments of the one that `start` copies.

    Yields one result for each check: the six by name, and if those pass, the four of the whole.

    Args:
        script: The file.

    Raises:
        CannotJudge: If the script doesn't run, or its runs do not fit together.
    """
    script = Path(script).absolute()
    if not script.is_file():
        raise CannotJudge(f"there is no file {script}")
    with TemporaryDirectory() as folder:
        runs = Runs(script, Path(folder))
        checkpoint = runs.folder / "run.ckpt"
        saving = [*SETTING, *TRAINING, "--save-every", "1", "--checkpoint", str(checkpoint)]
        runs.run("a run to be killed", *runs.watched(saving, kill=KILLED_AT))
        resuming = [*saving, "--resume"] if checkpoint.exists() else saving
        lr_0 = TRIAL, LARGE, [*TRIAL, "--window", "1"], [*TRIAL, "--clip", str(CLIP)]
        runs.run("windows and large batches", *runs.watched(*lr_0, resuming, saving, [*LARGE, *TRAINING]))
        window, large, single, clipped, resumed, whole, trained = runs.seen()

        says = f"a window keeps {window.peak / 1e6:.1f} MB for backward, a micro-batch {single.peak / 1e6:.1f} MB"
        six = [("memory", window.peak < 1.25 * single.peak, says)]
        six += what_updates_hold(single.gradients, window.gradients, large.gradients)
        norms = clipped.gradients.norm(dim=1)
        says = f"with --clip {CLIP}, which every norm exceeds, norms of {_row(norms)} reach the steps"
        six.append(("scaler", bool(((norms / CLIP - 1).abs() < 1e-3).all()), says))
        apart, made, in_all = _apart(resumed.weights, whole.weights), len(resumed.gradients), len(whole.gradients)
        says = f"killed right before update {KILLED_AT}, it goes on with its last {made} of {in_all} updates"
        six.append(("resume", made < in_all and apart < EXACT, f"{says}; at the end the weights differ by {apart:.1e}"))
        yield from six
        if not all(passed for _, passed, _ in six):
            return

        off, apart = _apart(window.gradients, large.gradients), _apart(whole.weights, trained.weights)
        says = f"{len(window.gradients)} updates differ from the large batches' by at most {off:.1e}"
        yield "exact", max(off, apart) < EXACT, f"{says}; after training, the weights by {apart:.1e}"

        yield "ranks", *_on_two_ranks(runs, large.gradients)

        status = runs.run("the audit", "-m", "gradaudit", script, *SETTING, *TRAINING, fine=1)
        yield "audit", status == 0, f"exit status {status} of: gradaudit {script} {' '.join(SETTING + TRAINING)}"

        log = runs.folder / "log.jsonl"
        runs.run("the run that has to beat the bigrams", script, "--words", LEARNED, "--log", log)
        try:
            loss = float(json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["held_out"])
        except (OSError, ValueError, TypeError, LookupError):
            raise CannotJudge('the last line that --log writes must be {"held_out": 2.2}') from None
        to_learn, held_out = read_words()
        bigrams = bigram_loss(to_learn[:LEARNED], held_out)
        yield "loss", loss < bigrams, f"{loss:.2f} per letter on words not seen; the bigrams have {bigrams:.2f}"


def shares(gradients: Tensor, of: Tensor) -> Tensor:
    """The factors with which each gradient is a sum of others: a row per gradient, a column each.

    A row is NaN if its gradient is no such sum, to 6 digits.

    Args:
        gradients: One gradient per row.
        of: The gradients of micro-batches, one per row, at the same weights.

    Example:
        >>> shares(torch.tensor([[2.0, 3.0, 0.0], [0.0, 0.0, 1.0]]), of=torch.eye(3)[:2]).tolist()
        [[2.0, 3.0], [nan, nan]]
    """
    found = torch.linalg.lstsq(of.T, gradients.T).solution.T
    off = (found @ of - gradients).norm(dim=1, keepdim=True)
    return found.where(off <= 1e-6 * gradients.norm(dim=1, keepdim=True), torch.nan)


def what_updates_hold(single: Tensor, updates: Tensor, large: Tensor) -> Iterator[Result]:
    """The checks of division, tail and tokens.

    Args:
        single: The gradients of all micro-batches, one per row.
        updates: Those of the updates in windows.
        large: And in large batches.

    Raises:
        CannotJudge: If the first updates are no sums of the first epoch's gradients.
    """
    if len(single) != MICRO_BATCHES * EPOCHS or min(len(updates), len(large)) < FULL:
        made = f"{len(single)} updates with --window 1 and {len(updates)} with --window {WINDOW}"
        raise CannotJudge(f"{MICRO_BATCHES * EPOCHS} micro-batches make {made}")
    made, due = (shares(gradients[: FULL + 1], single[:MICRO_BATCHES]) for gradients in (updates, large))
    if made[:FULL].isnan().any() or due[:FULL].isnan().any():
        raise CannotJudge(
            "the first updates' gradients are not made of those of the micro-batches. The same words must come in the "
            "same order whatever --window and --micro-batch are, and nothing may be random in a forward pass"
        )
    sums = made[:FULL].sum(dim=1)
    divides = bool(((sums - 1).abs() < EXACT).all())
    yield "division", divides, f"in the full windows the shares add up to {_row(sums)}; those of a mean, to 1"

    tail = made[FULL:]  # NaN if it holds micro-batches of the next epoch
    own = len(updates) == len(large) and bool((tail[:, : FULL * WINDOW].abs() < EXACT).all())
    whole = not divides or abs(float(tail.sum()) - 1) < EXACT
    says = f"{len(updates)} updates in {EPOCHS} epochs of {FULL + 1} windows"
    if own:
        says += f"; the shares in the short window are {_row(tail[0, FULL * WINDOW :])}"
    yield "tail", own and whole, says

    parts, right = (rows[:FULL] / rows[:FULL].sum(dim=1, keepdim=True) for rows in (made, due))
    says = f"the shares in update 1 are {_row(parts[0, :WINDOW])}; in one large batch, {_row(right[0, :WINDOW])}"
    yield "tokens", bool(((parts - right).abs() < EXACT).all()), says


def _on_two_ranks(runs: Runs, large: Tensor) -> tuple[bool, str]:
    """Whether two ranks make the updates that one makes, and what is said of it."""
    command = [*TORCHRUN, *runs.watched(TRIAL)]
    status, output, late = run_python(*command, title="two ranks", limit=LIMIT, cwd=runs.script.parent)
    if late or status:
        waits = f"it had not ended after {LIMIT:g} s. Does each rank make the same collective calls?"
        return False, f"torchrun failed: {waits if late else last_words(output)}"
    off = max(_apart(runs.seen(rank)[0].gradients, large) for rank in range(2))
    return off < EXACT, f"on 2 ranks, where DDP divides by 2, the updates differ from one rank's by {off:.1e}"


def _apart(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest number; infinite for other sizes or NaN."""
    if found.shape != wanted.shape:
        return torch.inf
    return float(((found - wanted).abs().max() / wanted.abs().max()).nan_to_num(torch.inf))


def _row(numbers: Tensor) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers.tolist())
