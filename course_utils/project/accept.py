"""Judges a training script by what its runs do: six checks by name, then four of the whole.

Most runs have a learning rate of 0, so all their gradients are taken at the same weights, and the gradient of an update
must be a sum of those of its micro-batches. `shares` finds with which factors. Large batches, which the script makes
itself with `--window 1` and four times the words in a micro-batch, say with which factors it should be.
"""

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from course_utils.project.text import bigram_loss, read_words
from course_utils.project.watch import Seen, file_of
from course_utils.ranks.script import last_words, run_python, torchrun

WINDOW, MICRO_BATCHES, EPOCHS = 4, 10, 2  # of an epoch; the last of its three windows is short
FULL = MICRO_BATCHES // WINDOW
SIZE = 16  # words in a micro-batch
WORDS = MICRO_BATCHES * SIZE - 4  # the last micro-batch is short, too
KILLED_AT = MICRO_BATCHES + 7  # in the middle of the second epoch's second window
LEARNED = 16160  # the words of the run that has to beat the bigrams, each counted as often as it is read
EXACT = 1e-10  # relative; what sums in another order differ by is below 1e-12, and no bug is as small
SIX = ("memory", "division", "tail", "tokens", "scaler", "resume")
CHECKS = (*SIX, "exact", "ranks", "audit", "loss")


class CannotJudge(Exception):
    """The script does not run, or its runs do not fit together."""


@dataclass(frozen=True)
class Result:
    """What one check says; `passed` is None if it has not been made."""

    name: str
    passed: bool | None
    says: str


@dataclass
class Acceptance:
    """What was found of a script.

    Attributes:
        results: One per check, in the order of `CHECKS`.
        table: The share of each micro-batch in each update of the first epoch.
        losses: Those that the long run has logged: one per update, and that on the words held out.
        bigrams: What counting pairs of letters has there.
    """

    results: list[Result] = field(default_factory=list)
    table: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    bigrams: float = 0.0

    @property
    def failed(self) -> list[str]:
        """The names of the checks that the script fails."""
        return [result.name for result in self.results if result.passed is False]

    @property
    def accepted(self) -> bool:
        """Whether every check has been made, and passed."""
        return len(self.results) == len(CHECKS) and all(result.passed for result in self.results)


class Runs:
    """Runs one script again and again, and writes into a folder what the runs did."""

    def __init__(self, script: Path, folder: Path, text: list[object], limit: float):
        self.script, self.folder, self.text, self.limit = script, folder, text, limit

    def short(self, *arguments: object, window: int = WINDOW, size: int = SIZE, lr: float = 0.0) -> list[object]:
        """The arguments of a run of two epochs in float64, without clipping unless they say otherwise."""
        common = ["--words", WORDS, "--epochs", EPOCHS, "--precision", "float64", "--clip", 1e12, "--lr", lr]
        return [*self.text, *common, "--micro-batch", size, "--window", window, *arguments]

    def watch(self, what: str, arguments: list[object]) -> Seen:
        """What a run did."""
        file = self.folder / f"{what}.pt"
        self.run(what, ["-m", "course_utils.project.watch", file, 0, self.script], arguments)
        return self.seen(file)

    def seen(self, file: Path, rank: int = 0) -> Seen:
        return Seen(**torch.load(file_of(file, rank)))

    def run(self, what: str, command: list[object], arguments: list[object], fine: tuple[int, ...] = (0,)) -> int:
        """The exit status of a command in which the script runs with these arguments."""
        options = {"title": what, "limit": self.limit, "cwd": self.script.parent, "one_thread": True}  # a small model
        status, output, late = run_python(*command, *arguments, **options)
        if status in fine and not late:
            return status
        ended = f"had not ended after {self.limit:g} s" if late else f"ended with status {status}: {last_words(output)}"
        words = [str(word).replace(f"{self.folder}{os.sep}", "") for word in arguments]
        by_hand = shlex.join(["python", os.path.relpath(self.script), *words])
        raise CannotJudge(f"'{what}' {ended}. By hand:\n  {by_hand}")


def accept(script: str | Path, text: str | Path | None = None, limit: float = 60.0) -> Acceptance:
    """Judges a training script that takes the arguments of the one that `start` copies.

    Args:
        script: The file.
        text: A text whose words are learned, instead of the dictionary.
        limit: Seconds that each run may take.

    Raises:
        CannotJudge: If the script doesn't run, or its runs do not fit together.
    """
    script, found = Path(script).absolute(), Acceptance()
    if not script.is_file():
        raise CannotJudge(f"there is no file {script}")
    try:
        words = read_words(text)
        with TemporaryDirectory() as folder:
            runs = Runs(script, Path(folder), ["--text", Path(text).absolute()] if text else [], limit)
            window, large = runs.watch("windows", runs.short()), runs.watch("large batches", _large(runs))
            found.results += _the_six(runs, found, window, large)
            if not found.failed:
                found.results += _the_whole(runs, found, window, large, *words)
    except (ValueError, OSError) as error:
        raise CannotJudge(str(error)) from None
    found.results += [Result(name, None, "not tried yet") for name in CHECKS[len(found.results) :]]
    return found


def _large(runs: Runs, *arguments: object, lr: float = 0.0) -> list[object]:
    return runs.short(*arguments, window=1, size=SIZE * WINDOW, lr=lr)


def _the_six(runs: Runs, found: Acceptance, window: Seen, large: Seen) -> Iterator[Result]:
    single = runs.watch("every micro-batch alone", runs.short(window=1))
    says = f"a window keeps {window.peak / 1e6:.1f} MB for backward, its largest micro-batch {single.peak / 1e6:.1f} MB"
    yield Result("memory", window.peak < 1.25 * single.peak, says)

    yield from what_updates_hold(single.gradients, window.gradients, large.gradients)
    found.table = shares(window.gradients[: FULL + 1], single.gradients[:MICRO_BATCHES]).tolist()

    clip = 0.5 * float(window.gradients.norm(dim=1).min())
    norms = runs.watch("clipping", runs.short("--clip", clip)).gradients.norm(dim=1)
    says = f"with --clip {clip:.3g}, which every norm exceeds, norms of {_row(norms)} reach the steps"
    yield Result("scaler", bool(((norms / clip - 1).abs() < 1e-3).all()), says)

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

    yield Result("tail", *_tail(single, updates, made, len(large), divides))

    parts, right = (rows[:FULL] / rows[:FULL].sum(dim=1, keepdim=True) for rows in (made, due))
    says = f"the shares in update 1 are {_row(parts[0, :WINDOW])}; in one large batch, {_row(right[0, :WINDOW])}"
    yield Result("tokens", bool(((parts - right).abs() < EXACT).all()), says)


def _tail(single: Tensor, updates: Tensor, made: Tensor, due: int, divides: bool) -> tuple[bool, str]:
    """Does the short window at the end of the first epoch get an update of its own, with shares as a full one has?"""
    start = FULL * WINDOW
    if len(updates) != due:
        later = shares(updates[FULL : FULL + 1], single[start : start + MICRO_BATCHES])[:, : MICRO_BATCHES - start]
        where = "in an update of the second" if (later.abs() > EXACT).any() else "in none of them"
        says = f"{len(updates)} updates instead of {due} in {EPOCHS} epochs"
        return False, f"{says}; the last {MICRO_BATCHES - start} micro-batches of the first epoch are {where}"
    if not (made[FULL, :start].abs() < EXACT).all():  # nor NaN
        return False, f"update {FULL + 1} is not made of its own window's micro-batches alone"
    total = float(made[FULL].sum())
    if divides and abs(total - 1) > EXACT:
        return False, f"in the short window the shares add up to {total:.3g}; those of a mean, to 1"
    return True, f"{due} updates in {EPOCHS} epochs, the last of each of {MICRO_BATCHES - start} micro-batches"


def _resumed(runs: Runs) -> tuple[bool, str]:
    """Does a run that was killed in mid-window end where one ends that was not?"""
    checkpoint = runs.folder / "run.ckpt"
    saving = runs.short("--save-every", 1, "--checkpoint", checkpoint, lr=0.02)
    whole = runs.watch("a whole run", saving)
    checkpoint.unlink(missing_ok=True)
    command = ["-m", "course_utils.project.watch", runs.folder / "killed.pt", KILLED_AT, runs.script]
    if runs.run("a killed run", command, saving, fine=(0, -9, 15)) == 0:
        return False, f"it had fewer than {KILLED_AT} forward passes for {MICRO_BATCHES * EPOCHS} micro-batches"
    if not checkpoint.exists():
        return False, f"killed at micro-batch {KILLED_AT}, it has left no checkpoint"
    resumed = runs.watch("the resumed run", [*saving, "--resume"])
    updates, apart = len(resumed.gradients), _apart(resumed.weights, whole.weights)
    says = f"killed at micro-batch {KILLED_AT}, it goes on with its last {updates} of {len(whole.gradients)} updates"
    passed = updates < len(whole.gradients) and apart < 1e-9
    return passed, f"{says}; at the end the weights differ by {apart:.1e}"


def _the_whole(
    runs: Runs, found: Acceptance, window: Seen, large: Seen, to_learn: list[str], held_out: list[str]
) -> Iterator[Result]:
    """The four checks that mean little before the others pass."""
    off = _apart(window.gradients, large.gradients) / float(large.gradients.abs().max())
    windows = runs.watch("training, windows", runs.short("--clip", 0.5, lr=0.02))
    batches = runs.watch("training, large batches", _large(runs, "--clip", 0.5, lr=0.02))
    apart = _apart(windows.weights, batches.weights)
    says = f"{len(window.gradients)} updates differ from the large batches' by at most {off:.1e}"
    yield Result("exact", off < EXACT and apart < 1e-9, f"{says}; after training, the weights by {apart:.1e}")

    yield Result("ranks", *_on_two_ranks(runs, large))

    report = runs.folder / "audit.json"
    audit = ["-m", "gradaudit", "--json", report, runs.script]
    status = runs.run("the audit", audit, runs.short("--clip", 0.5, lr=0.02), fine=(0, 1))
    findings = json.loads(report.read_text(encoding="utf-8"))["findings"]
    named = ", ".join(f"{finding['rule']} ({finding['level']})" for finding in findings) or "nothing"
    yield Result("audit", status == 0, f"gradaudit found {named} (exit status {status})")

    log, epochs = runs.folder / "log.jsonl", max(1, round(LEARNED / len(to_learn)))
    arguments = [*runs.text, "--words", LEARNED, "--epochs", epochs, "--log", log]
    runs.run("the run that has to beat the bigrams", [runs.script], arguments)
    found.losses, found.bigrams = _logged(log), bigram_loss(to_learn[:LEARNED], held_out)
    says = f"{found.losses[-1]:.2f} per letter on words not seen; the bigrams have {found.bigrams:.2f}"
    yield Result("loss", found.losses[-1] < found.bigrams, says)


def _on_two_ranks(runs: Runs, large: Seen) -> tuple[bool, str]:
    """Do two ranks make the updates that one makes?"""
    file = runs.folder / "ranks.pt"
    command = ["-m", "course_utils.project.watch", file, 0, runs.script, *runs.short()]
    status, output, late = torchrun(*command, limit=runs.limit, cwd=runs.script.parent)
    if late:
        says = f"torchrun had not ended after {runs.limit:g} s. Does each rank make the same collective calls?"
        return False, says
    if status:
        return False, f"torchrun failed: {last_words(output)}"
    off = max(_apart(runs.seen(file, rank).gradients, large.gradients) for rank in range(2))
    off /= float(large.gradients.abs().max())
    ask = "" if off < EXACT else ". By what does a rank divide its losses, and by what does DDP divide?"
    return off < EXACT, f"on 2 ranks the updates differ from one rank's by {off:.1e}{ask}"


def _logged(log: Path) -> list[float]:
    """The losses of the updates, and at last that on the words held out."""
    try:
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return [float(line["loss"]) for line in lines[:-1]] + [float(lines[-1]["held_out"])]
    except (OSError, ValueError, TypeError, LookupError):
        says = '--log must write a line {"loss": 3.2} for each update and {"held_out": 2.2} as its last'
        raise CannotJudge(says) from None


def _apart(found: Tensor, wanted: Tensor) -> float:
    """The largest difference; infinite if the two are of different sizes or not numbers."""
    if found.shape != wanted.shape:
        return torch.inf
    return float((found - wanted).abs().max().nan_to_num(torch.inf))


def _row(numbers: Tensor) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers.tolist())
