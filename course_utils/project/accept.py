"""Judges a training script by what its runs do: six checks by name, then four of the whole.

Most runs have a learning rate of 0, so all their gradients are taken at the same weights, and the gradient of an update
must be a sum of those of its micro-batches. `shares` finds with which factors. Large batches, which the script makes
itself with `--window 1` and four times the words in a micro-batch, say with which factors it should be.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.project.text import bigram_loss, read_words
from course_utils.project.watch import Seen
from course_utils.ranks.script import last_words, run_python, torchrun

WINDOW, MICRO_BATCHES, EPOCHS = 4, 10, 2  # of an epoch; the last of its three windows is short
FULL = MICRO_BATCHES // WINDOW
SIZE = 16  # words in a micro-batch
WORDS = MICRO_BATCHES * SIZE - 4  # the last micro-batch is short, too
CLIP = 0.1  # the norm of every update exceeds it at the first weights
KILLED_AT = MICRO_BATCHES + 7  # in the middle of the second epoch's second window
LEARNED = 16160  # the words of the run that has to beat the bigrams
EXACT = 1e-10  # relative; what sums in another order differ by is below 1e-12, and no bug is as small
SIX = ("memory", "division", "tail", "tokens", "scaler", "resume")
CHECKS = (*SIX, "exact", "ranks", "audit", "loss")


class CannotJudge(Exception):
    """The script does not run, or its runs do not fit together."""


class Result(NamedTuple):
    """What one check says; `passed` is None if it has not been made."""

    name: str
    passed: bool | None
    says: str


class Runs:
    """Runs one script again and again, and reads from a folder what the runs did."""

    def __init__(self, script: Path, folder: Path, limit: float):
        self.script, self.folder, self.limit = script, folder, limit

    def watch(self, title: str, *runs: list[str]) -> list[Seen]:
        """What some runs did, one after the other in one process."""
        self.run(title, self.watched(0, *runs))
        return self.seen()

    def watched(self, kill: int, *runs: list[str]) -> list[object]:
        """The command that does so."""
        return ["-m", "course_utils.project.watch", self.folder / "seen", kill, self.script, json.dumps(runs)]

    def seen(self, rank: int = 0) -> list[Seen]:
        return [Seen(*seen) for seen in torch.load(self.folder / f"seen{rank}")]

    def run(self, title: str, command: list[object], fine: tuple[int, ...] = (0,)) -> int:
        """The exit status of a command that runs the script."""
        options = {"title": title, "limit": self.limit, "cwd": self.script.parent, "one_thread": True}  # a small model
        status, output, late = run_python(*command, **options)
        if status in fine and not late:
            return status
        lines = output.splitlines()
        by_hand = [line for line in lines if line.startswith("python ")]  # which watch prints
        said = last_words("\n".join(line for line in lines if line not in by_hand))
        ended = f"had not ended after {self.limit:g} s" if late else f"ended with status {status}: {said}"
        raise CannotJudge("\n  by hand: ".join([f"'{title}' {ended}", *by_hand[-1:]]))


def arguments(*more: object, window: int = WINDOW, size: int = SIZE, lr: float = 0.0, clip: float = 1e12) -> list[str]:
    """Those of a run of two epochs in float64."""
    options = {"words": WORDS, "epochs": EPOCHS, "precision": "float64", "clip": clip, "lr": lr}
    options |= {"micro-batch": size, "window": window}
    return [*(str(word) for name, value in options.items() for word in (f"--{name}", value)), *map(str, more)]


LARGE = {"window": 1, "size": SIZE * WINDOW}


def accept(script: str | Path, limit: float = 120.0) -> list[Result]:
    """Judges a training script that takes the arguments of the one that `start` copies: one result for each check.

    Args:
        script: The file.
        limit: Seconds that each of its processes may take.

    Raises:
        CannotJudge: If the script doesn't run, or its runs do not fit together.
    """
    script = Path(script).absolute()
    script = script / "train.py" if script.is_dir() else script
    if not script.is_file():
        raise CannotJudge(f"there is no file {script}")
    with TemporaryDirectory() as folder:
        runs = Runs(script, Path(folder), limit)
        four = arguments(), arguments(**LARGE), arguments(window=1), arguments(clip=CLIP)
        window, large, single, clipped = runs.watch("windows and large batches", *four)
        found = list(_the_six(runs, window, large, single, clipped))
        if all(result.passed for result in found):
            found += _the_whole(runs, window, large)
    return found + [Result(name, None, "not tried yet") for name in CHECKS[len(found) :]]


def _the_six(runs: Runs, window: Seen, large: Seen, single: Seen, clipped: Seen) -> Iterator[Result]:
    says = f"a window keeps {window.peak / 1e6:.1f} MB for backward, its largest micro-batch {single.peak / 1e6:.1f} MB"
    yield Result("memory", window.peak < 1.25 * single.peak, says)

    yield from what_updates_hold(single.gradients, window.gradients, large.gradients)

    norms = clipped.gradients.norm(dim=1)
    says = f"with --clip {CLIP}, which every norm exceeds, norms of {_row(norms)} reach the steps"
    yield Result("scaler", bool(((norms / CLIP - 1).abs() < 1e-3).all()), says)

    yield Result("resume", *_resumed(runs))


def shares(gradients: Tensor, of: Tensor) -> Tensor:
    """With which factors each gradient is a sum of others: one row per gradient, one column per other.

    A row is NaN if its gradient is no such sum, to 6 digits.

    Args:
        gradients: One gradient per row.
        of: The gradients of micro-batches, one per row, at the same weights.

    Example:
        >>> shares(torch.tensor([[2.0, 3.0, 0.0], [0.0, 0.0, 1.0]]), of=torch.eye(3)[:2]).tolist()
        [[2.0, 3.0], [nan, nan]]
    """
    found = torch.linalg.lstsq(of.T, gradients.T).solution.T
    off = (found @ of - gradients).norm(dim=1) / gradients.norm(dim=1).clamp(min=1e-300)
    return found.where(off[:, None] < 1e-6, torch.nan)


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
        raise CannotJudge(
            f"with --window 1 there must be one update for each of the {MICRO_BATCHES * EPOCHS} micro-batches, and "
            f"there are {len(single)}; with --window {WINDOW} there are {len(updates)}"
        )
    made, due = (shares(gradients[: FULL + 1], single[:MICRO_BATCHES]) for gradients in (updates, large))
    if made[:FULL].isnan().any() or due[:FULL].isnan().any():
        raise CannotJudge(
            "the first updates' gradients are not made of those of the micro-batches. The same words must come in the "
            "same order whatever --window and --micro-batch are, and nothing may be random in a forward pass"
        )
    sums = torch.cat([made[:FULL], due[:1]]).sum(dim=1)
    divides = bool(((sums - 1).abs() < EXACT).all())
    says = f"in the full windows the shares add up to {_row(sums[:-1])}, in one large batch to {sums[-1]:.3g}"
    yield Result("division", divides, f"{says}; those of a mean, to 1")

    rest, start = made[FULL:], FULL * WINDOW
    fits = len(updates) == len(large)
    own = fits and bool((rest[:, :start].abs() < EXACT).all())  # nor NaN
    whole = fits and not (divides and abs(float(rest.sum()) - 1) > EXACT)
    says = f"{len(updates)} updates in {EPOCHS} epochs of {FULL + 1} windows"
    says += f"; the shares in the short window are {_row(rest[0])}" if fits else ""
    yield Result("tail", own and whole, says)

    parts, right = (rows[:FULL] / rows[:FULL].sum(dim=1, keepdim=True) for rows in (made, due))
    says = f"the shares in update 1 are {_row(parts[0, :WINDOW])}; in one large batch, {_row(right[0, :WINDOW])}"
    yield Result("tokens", bool(((parts - right).abs() < EXACT).all()), says)


def _resumed(runs: Runs) -> tuple[bool, str]:
    """Does a run that was killed in mid-window end where one ends that was not?"""
    checkpoint = runs.folder / "run.ckpt"
    saving = arguments("--save-every", 1, "--checkpoint", checkpoint, lr=0.02)
    if runs.run("a killed run", runs.watched(KILLED_AT, saving), fine=(0, -9, 15)) == 0:
        return False, f"it had fewer than {KILLED_AT} forward passes for {MICRO_BATCHES * EPOCHS} micro-batches"
    if not checkpoint.exists():
        return False, f"killed at micro-batch {KILLED_AT}, it has left no checkpoint"
    resumed, whole = runs.watch("the resumed run and a whole one", [*saving, "--resume"], saving)
    updates, apart = len(resumed.gradients), _apart(resumed.weights, whole.weights)
    says = f"killed at micro-batch {KILLED_AT}, it goes on with its last {updates} of {len(whole.gradients)} updates"
    passed = updates < len(whole.gradients) and apart < 1e-9
    return passed, f"{says}; at the end the weights differ by {apart:.1e}"


def _the_whole(runs: Runs, window: Seen, large: Seen) -> Iterator[Result]:
    """The four checks that mean little before the others pass."""
    off = _apart(window.gradients, large.gradients) / float(large.gradients.abs().max())
    training = arguments(clip=0.5, lr=0.02)
    windows, batches = runs.watch("training", training, arguments(**LARGE, clip=0.5, lr=0.02))
    apart = _apart(windows.weights, batches.weights)
    says = f"{len(window.gradients)} updates differ from the large batches' by at most {off:.1e}"
    yield Result("exact", off < EXACT and apart < 1e-9, f"{says}; after training, the weights by {apart:.1e}")

    yield Result("ranks", *_on_two_ranks(runs, large))

    report = runs.folder / "audit.json"
    status = runs.run("the audit", ["-m", "gradaudit", "--json", report, runs.script, *training], fine=(0, 1))
    findings = json.loads(report.read_text(encoding="utf-8"))["findings"]
    named = ", ".join(f"{finding['rule']} ({finding['level']})" for finding in findings) or "nothing"
    yield Result("audit", status == 0, f"gradaudit found {named} (exit status {status})")

    log = runs.folder / "log.jsonl"
    runs.run("the run that has to beat the bigrams", [runs.script, "--words", LEARNED, "--log", log])
    try:
        loss = float(json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["held_out"])
    except (OSError, ValueError, TypeError, LookupError):
        raise CannotJudge('the last line that --log writes must be {"held_out": 2.2}') from None
    to_learn, held_out = read_words()
    bigrams = bigram_loss(to_learn[:LEARNED], held_out)
    yield Result("loss", loss < bigrams, f"{loss:.2f} per letter on words not seen; the bigrams have {bigrams:.2f}")


def _on_two_ranks(runs: Runs, large: Seen) -> tuple[bool, str]:
    """Do two ranks make the updates that one makes?"""
    status, output, late = torchrun(*runs.watched(0, arguments()), limit=runs.limit, cwd=runs.script.parent)
    if late:
        says = f"torchrun had not ended after {runs.limit:g} s. Does each rank make the same collective calls?"
        return False, says
    if status:
        return False, f"torchrun failed: {last_words(output)}"
    off = max(_apart(runs.seen(rank)[0].gradients, large.gradients) for rank in range(2))
    off /= float(large.gradients.abs().max())
    ask = "" if off < EXACT else ". By what does a rank divide its losses, and by what does DDP divide?"
    return off < EXACT, f"on 2 ranks the updates differ from one rank's by {off:.1e}{ask}"


def _apart(found: Tensor, wanted: Tensor) -> float:
    """The largest difference; infinite if the two are of different sizes or not numbers."""
    if found.shape != wanted.shape:
        return torch.inf
    return float((found - wanted).abs().max().nan_to_num(torch.inf))


def _row(numbers: Tensor) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers.tolist())
