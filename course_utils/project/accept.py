"""Runs a training script as its user would, in processes of its own, and makes the checks."""

import json
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from course_utils.project import checks
from course_utils.project.checks import EPOCHS, MICRO_BATCHES, WINDOW, Result, Seen, Unreadable
from course_utils.project.process import Endless, run
from course_utils.project.text import bigram_loss, read_words
from course_utils.project.watch import file_of
from course_utils.ranks import ScriptError, torchrun

SIZE = 16  # words in a micro-batch
WORDS = MICRO_BATCHES * SIZE - 4  # the last micro-batch is short, too
KILLED_AT = MICRO_BATCHES + 7  # in the middle of the second epoch's second window
LEARNED = 16160  # the words of the run that has to beat the bigrams, each counted as often as it is read
CHECKS = ("memory", "division", "tail", "tokens", "scaler", "resume", "exact", "ranks", "audit", "loss")
PLANTED = CHECKS[:6]
RUNS = 12  # processes that start, if all is well


class CannotJudge(Exception):
    """The script does not run, or its runs do not fit together."""


@dataclass
class Acceptance:
    """What was measured of a script.

    Attributes:
        results: One per check, in the order of `CHECKS`.
        table: The share of each micro-batch in each update.
        peaks: Bytes kept for backward, by the size of the window.
        losses: The losses that the long run has logged, one per update.
        held_out: Its loss on the words held out, and the bigrams' loss there.
        drawing: The auditor's ledger, as SVG.
    """

    results: list[Result] = field(default_factory=list)
    table: list[list[float]] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    held_out: tuple[float, float] | None = None
    drawing: str = ""

    @property
    def failed(self) -> list[str]:
        """The names of the checks that the script fails."""
        return [result.name for result in self.results if result.passed is False]

    @property
    def accepted(self) -> bool:
        """Whether every check has been made, and passed."""
        return len(self.results) == len(CHECKS) and all(result.passed for result in self.results)


class Bench:
    """Runs one script again and again, with a folder for what the runs write.

    Args:
        script: The file.
        folder: Where the runs write.
        text: The text whose words are learned, instead of the dictionary.
        limit: Seconds that a run may take.
        began: Called whenever a run begins, with what it is for.
    """

    def __init__(self, script: Path, folder: Path, text: Path | None, limit: float, began=lambda what: None):
        self.script, self.folder, self.limit, self.began = script, folder, limit, began
        self.text = ["--text", str(text)] if text else []

    def short(self, *arguments: object, window: int = WINDOW, size: int = SIZE, lr: float = 0.0) -> list[str]:
        """The arguments of a run of two epochs in float64, without clipping unless they say otherwise."""
        common = ["--words", WORDS, "--epochs", EPOCHS, "--precision", "float64", "--clip", 1e12, "--lr", lr]
        return list(map(str, [*self.text, *common, "--micro-batch", size, "--window", window, *arguments]))

    def watch(self, what: str, arguments: list[str], kill: int = 0) -> Seen | None:
        """What a run did; None if it was killed.

        Args:
            what: What the run is for.
            arguments: The script's.
            kill: The forward pass at whose beginning the run is killed; 0 means never.
        """
        file = self.folder / f"{what.replace(' ', '-')}.pt"
        command = ["-m", "course_utils.project.watch", file, kill, self.script, *arguments]
        status, output = self.run(what, command, arguments)
        if kill and status not in (0, 1, 2):
            return None
        if status:
            raise CannotJudge(self.failure(what, status, output, arguments))
        return _read(file_of(file, 0))

    def run(self, what: str, command: list, arguments: list[str]) -> tuple[int, str]:
        """The exit status of a command in which the script runs with these arguments, and what it printed."""
        self.began(what)
        try:
            return run(command, self.script.parent, self.limit)
        except Endless:
            says = f"'{what}' had not ended after {self.limit:g} s"
            raise CannotJudge(f"{says}. By hand:\n  {self.by_hand(arguments)}") from None

    def failure(self, what: str, status: int, output: str, arguments: list[str]) -> str:
        """Why a run can't be judged, and how to see it."""
        lines = re.findall(rf'{re.escape(self.script.name)}", line (\d+)', output)
        said = f"line {lines[-1]}, {_last_words(output)}" if lines else _last_words(output)
        return f"'{what}' ended with status {status}: {said}. By hand:\n  {self.by_hand(arguments)}"

    def by_hand(self, arguments: list[str]) -> str:
        """A command that runs the script in the same way."""
        words = [word.replace(f"{self.folder}{os.sep}", "") for word in arguments]
        return shlex.join(["python", os.path.relpath(self.script), *words])


def accept(
    script: str | Path, text: str | Path | None = None, limit: float = 60.0, began=lambda what: None
) -> Acceptance:
    """Judges a training script that takes the arguments of the one that `start` copies.

    The six checks by name come first. The four of the whole run only if the script passes those.

    Args:
        script: The file.
        text: A text whose words are learned, instead of the dictionary.
        limit: Seconds that each run may take.
        began: Called whenever a run begins, with what it is for.

    Raises:
        CannotJudge: If the script doesn't run, or its runs do not fit together.
    """
    script = Path(script).absolute()
    if not script.is_file():
        raise CannotJudge(f"there is no file {script}")
    found = Acceptance()
    try:
        read_words(text)
        with TemporaryDirectory() as folder:
            bench = Bench(script, Path(folder), Path(text).absolute() if text else None, limit, began)
            large = _by_name(bench, found)
            if not found.failed:
                _as_a_whole(bench, found, *large)
    except (Unreadable, ValueError, OSError) as error:
        raise CannotJudge(str(error)) from None
    found.results += [Result(name, None, "not tried yet") for name in CHECKS[len(found.results) :]]
    return found


def _by_name(bench: Bench, found: Acceptance) -> tuple[Seen, Seen]:
    """The six checks. Returns the run in windows and the one in large batches."""
    single = bench.watch("every micro-batch alone", bench.short(window=1))
    window = bench.watch("windows", bench.short())
    large = bench.watch("large batches", bench.short(window=1, size=SIZE * WINDOW))
    if len(single.gradients) != MICRO_BATCHES * EPOCHS:
        raise CannotJudge(
            f"with --window 1 there must be one update for each of the {MICRO_BATCHES * EPOCHS} micro-batches, "
            f"and there are {len(single.gradients)}"
        )
    if not (len(window.gradients) and len(large.gradients)):
        raise CannotJudge(f"with --window {WINDOW} or with --micro-batch {SIZE * WINDOW} no optimizer made a step")
    table, wanted = (checks.shares_in_epochs(seen.gradients, single.gradients) for seen in (window, large))
    found.table, found.peaks = table.tolist(), {"one micro-batch": single.peak, f"a window of {WINDOW}": window.peak}
    found.results += [
        checks.memory(single, window),
        checks.division(table, wanted),
        checks.tail(table, len(window.gradients)),
        checks.tokens(table, wanted),
    ]
    clip = 0.5 * min(float(row.norm()) for row in window.gradients) or 0.5
    clipped = bench.watch("clipping", bench.short("--clip", clip))
    found.results.append(checks.scaler(clipped.gradients, clip))
    saving = ["--save-every", "1", "--checkpoint"]
    whole = bench.watch("a whole run", bench.short(*saving, bench.folder / "whole.pt", lr=0.02))
    alive = bench.watch("a killed run", bench.short(*saving, bench.folder / "killed.pt", lr=0.02), kill=KILLED_AT)
    if alive is not None:
        says = f"{alive.forwards} forward passes for {MICRO_BATCHES * EPOCHS} micro-batches, so it wasn't killed in one"
        found.results.append(Result("resume", False, says))
    elif not (bench.folder / "killed.pt").exists():
        found.results.append(Result("resume", False, f"killed at micro-batch {KILLED_AT}, it has left no checkpoint"))
    else:
        again = bench.short(*saving, bench.folder / "killed.pt", "--resume", lr=0.02)
        found.results.append(checks.resume(whole, bench.watch("the resumed run", again), KILLED_AT))
    return window, large


def _as_a_whole(bench: Bench, found: Acceptance, window: Seen, large: Seen) -> None:
    """The four checks that mean little before the others pass."""
    trained = [
        bench.watch(f"training, {what}", bench.short("--clip", 0.5, window=n, size=size, lr=0.02))
        for what, n, size in (("windows", WINDOW, SIZE), ("large batches", 1, SIZE * WINDOW))
    ]
    found.results.append(checks.exact(window.gradients, large.gradients, *trained))
    found.results.append(_on_two_ranks(bench, large))
    found.results.append(_audited(bench, found))
    to_learn, held_out = read_words(bench.text[-1] if bench.text else None)
    log, epochs = bench.folder / "log.jsonl", max(1, round(LEARNED / len(to_learn)))
    arguments = [*bench.text, "--words", str(LEARNED), "--epochs", str(epochs), "--log", str(log)]
    what = "the run that has to beat the bigrams"
    status, output = bench.run(what, [bench.script, *arguments], arguments)
    if status or not log.exists():
        raise CannotJudge(bench.failure(what, status, output if status else "Error: --log wrote nothing", arguments))
    *found.losses, at_end = _logged(log)
    found.held_out = at_end, bigram_loss(to_learn[:LEARNED], held_out)
    found.results.append(checks.loss(*found.held_out))


def _on_two_ranks(bench: Bench, large: Seen) -> Result:
    bench.began("two ranks")
    file = bench.folder / "ranks.pt"
    words = ["course_utils.project.watch", file, 0, bench.script, *bench.short()]
    try:
        torchrun("-m", *words, n=2, timeout=bench.limit, cwd=bench.script.parent)
        return checks.ranks([_read(file_of(file, rank)) for rank in range(2)], large.gradients)
    except ScriptError as error:
        said, _, printed = str(error).partition("\n")
        if stuck := re.search(r"had not ended after \S+ s", said):
            return Result("ranks", False, f"torchrun {stuck[0]}. Does each rank make the same collective calls?")
        return Result("ranks", False, f"torchrun failed: {_last_words(printed)}")


def _audited(bench: Bench, found: Acceptance) -> Result:
    report, page = bench.folder / "audit.json", bench.folder / "audit.html"
    arguments = bench.short("--clip", 0.5, lr=0.02)
    command = ["-m", "gradaudit", "--json", report, "--html", page, bench.script, *arguments]
    status, output = bench.run("the audit", command, arguments)
    if status not in (0, 1):
        raise CannotJudge(bench.failure("the audit", status, output, arguments))
    html = page.read_text(encoding="utf-8")
    found.drawing = html[html.find("<svg") : html.find("</svg>") + 6] if "<svg" in html else ""
    return checks.audit(status, json.loads(report.read_text(encoding="utf-8"))["findings"])


def _logged(log: Path) -> list[float]:
    """The losses of the updates, and at last that on the words held out."""
    try:
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return [float(line["loss"]) for line in lines[:-1]] + [float(lines[-1]["held_out"])]
    except (ValueError, TypeError, LookupError):
        says = '--log must write a line {"loss": 3.2} for each update and {"held_out": 2.2} as its last'
        raise CannotJudge(says) from None


def _read(file: Path) -> Seen:
    return Seen(**torch.load(file))


def _last_words(output: str) -> str:
    """The error that ended a script, from what it printed."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    last = lines[-1] if lines else "it printed nothing"
    return next((line for line in reversed(lines) if "Error" in line or "error:" in line), last)
