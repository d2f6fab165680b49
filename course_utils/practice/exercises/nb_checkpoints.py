"""The exercise of *checkpoints* that kills a training function in every micro-batch and in every save."""

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close
from course_utils.practice.updates import random_batches, squared_error

PIECES = {  # of a run's state: the bug that leaves it out of the file, and how that shows
    "gradients": ("drops-gradients", "the gradients of the unfinished window were lost with the process"),
    "optimizer": ("drops-optimizer", "the optimizer's momentum started from nothing"),
    "schedule": ("drops-schedule", "the schedule started over"),
    "random numbers": ("drops-random-numbers", "dropout drew other random numbers"),
    "buffers": ("drops-buffers", "the weights are right, but BatchNorm's running statistics started over"),
    "parameters": ("drops-parameters", "the weights started from their initial values"),
    "count": ("shifted-windows", "the position in the data is right, but the window was counted from 0 again"),
}


class _Killed(BaseException):
    """The process dies. Not an `Exception`, so that nothing catches it by accident."""


class _Process:
    """What the script creates before it calls the training function: always the same."""

    def __init__(self):
        torch.default_generator.manual_seed(3)
        layers = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
        self.model = nn.Sequential(*layers).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.125, momentum=0.5)
        self.schedule = LambdaLR(self.optimizer, lambda update: 0.5**update)

    def result(self) -> list[Tensor]:
        """All that the run produced: parameters and buffers, momentum, and the learning rate."""
        momentum = [state["momentum_buffer"] for state in self.optimizer.state.values() if state]
        tensors = [*self.model.state_dict().values(), *momentum, torch.tensor(self.optimizer.param_groups[0]["lr"])]
        return [tensor.detach().double().clone() for tensor in tensors]


def _whole(batches: Sequence[Tensor], n: int, share: float = 0, zero: bool = True, cadence: str = "update") -> list:
    """The result of a run that is never interrupted; the other arguments make known bugs."""
    process = _Process()
    _go_on(process, batches, n, 0, share, zero, cadence)
    return process.result()


def _go_on(
    process: _Process,
    batches: Sequence[Tensor],
    n: int,
    count: int,
    share: float = 0,
    zero: bool = True,
    cadence: str = "update",
) -> None:
    for count, batch in enumerate(batches, start=count + 1):  # noqa: B020
        (squared_error(process.model, batch) * (share or 1 / n)).backward()
        if count % n == 0:
            process.optimizer.step()
            if zero:
                process.optimizer.zero_grad()
        if cadence == "micro-batch" or (cadence == "update" and count % n == 0):
            process.schedule.step()


def _without(piece: str, batches: Sequence[Tensor], n: int, saved: int) -> list:
    """The result of a run whose only file, after `saved` micro-batches, lacks a piece."""
    killed = _Process()
    _go_on(killed, batches[:saved], n, 0)
    gradients, state = [p.grad for p in killed.model.parameters()], torch.get_rng_state()
    process = _Process()
    entries = killed.model.state_dict()
    parameters = dict(killed.model.named_parameters())
    if piece == "parameters":
        entries = {name: value for name, value in entries.items() if name not in parameters}
    if piece == "buffers":
        entries = {name: value for name, value in entries.items() if name in parameters}
    process.model.load_state_dict(entries, strict=False)
    if piece != "optimizer":
        process.optimizer.load_state_dict(killed.optimizer.state_dict())
    if piece != "schedule":
        process.schedule.load_state_dict(killed.schedule.state_dict())
    if piece != "random numbers":
        torch.set_rng_state(state)
    if piece != "gradients":
        for p, gradient in zip(process.model.parameters(), gradients, strict=True):
            p.grad = gradient
    _go_on(process, batches[saved:], n, 0 if piece == "count" else saved)
    return process.result()


@exercise(
    "train_on",
    hints={
        "starts-over": "Is the file there when the function is called again, and does anything read it?",
        "drops-gradients": "What is in `.grad` when you save? No `state_dict` holds it.",
        "drops-optimizer": "SGD with momentum has a state of its own. Is it in the file, and is it loaded again?",
        "drops-schedule": "After the resume, at which update is the schedule? Save it as you save the optimizer.",
        "drops-random-numbers": "Dropout draws from PyTorch's default generator. Which two functions read and set it?",
        "drops-buffers": "What does BatchNorm keep that isn't a parameter? Does your file hold the whole `state_dict`?",
        "drops-parameters": "After loading, compare a weight of the model with the one in the file.",
        "shifted-windows": "After a resume, where in its window is the next micro-batch? Count on.",
        "wrong-batches": "Print which micro-batches run after a resume. What decides which one is first?",
        "torn-file": "Where is the last good file while you write the next one? A rename replaces it in one step.",
        "loss-scale": "Each loss is a mean over a micro-batch. What should n of them add up to?",
        "scheduler-cadence": "The schedule must step once after each update.",
    },
)
def _train_on(answer: Callable) -> str:
    for many, n in ((8, 4), (6, 3)):
        batches = random_batches([4] * many)
        case = f"{many} micro-batches, N = {n}"
        saves = _judge_whole(answer, batches, n, case)
        for number in range(1, many + 1):
            _judge_kill(answer, batches, n, f"{case}, killed in micro-batch {number}", number)
        for number in range(1, saves + 1):
            _judge_torn(answer, batches, n, f"{case}, killed in the middle of save {number}", number)
    return "killed in each micro-batch of two windows and in the middle of each save: the same run, bit for bit."


def _judge_whole(answer: Callable, batches: list[Tensor], n: int, case: str) -> int:
    """Judges a run that is not interrupted, and returns how often it called `torch.save`."""
    with tempfile.TemporaryDirectory() as folder, _saves() as saves:
        process, used = _run(answer, Path(folder) / "last.pt", batches, n)
    if not used:
        raise Mistake("not-attempted", "your function has not called loss_fn yet.")
    if used != [*range(len(batches))]:
        raise Mistake("wrong-batches", f"{case}, without a kill: it used the micro-batches {_shown(used)}.")
    known = (
        ("loss-scale", "the losses are not divided by n", partial(_whole, batches, n, share=1.0)),
        (
            "stale-gradients",
            "old gradients are still there in the next window",
            partial(_whole, batches, n, zero=False),
        ),
        ("scheduler-cadence", "the schedule never steps", partial(_whole, batches, n, cadence="never")),
        (
            "scheduler-cadence",
            "the schedule steps after each micro-batch",
            partial(_whole, batches, n, cadence="micro-batch"),
        ),
    )
    _compare(process.result(), batches, n, f"{case}, without a kill", known)
    return len(saves)


def _judge_kill(answer: Callable, batches: list[Tensor], n: int, case: str, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last.pt"
        _run(answer, file, batches, n, die_in=number)
        process, used = _run(answer, file, batches, n)
    done = number - 1
    if done >= n and used[:1] == [0]:
        raise Mistake("starts-over", f"{case}: the next process began with micro-batch 1 again.")
    case += f": the next process went on with micro-batch {used[0] + 1}" if used else ": the next process ran nothing"
    saved = used[0] if used else 0
    if saved not in range(done // n * n, number) or used != [*range(saved, len(batches))]:
        raise Mistake("wrong-batches", f"{case}, and used {_shown(used)}.")
    known = [(bug, hint, partial(_without, piece, batches, n, saved)) for piece, (bug, hint) in PIECES.items() if saved]
    _compare(process.result(), batches, n, case, known)


def _judge_torn(answer: Callable, batches: list[Tensor], n: int, case: str, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last.pt"
        with _saves(die_in=number):
            _run(answer, file, batches, n)
        try:
            process, _ = _run(answer, file, batches, n)
        except Exception as error:
            raise Mistake("torn-file", f"{case}: the next process found no file that it can read.") from error
    if not close(process.result(), _whole(batches, n), rtol=0, atol=0):
        raise Mistake("torn-file", f"{case}: the next process found parts that do not belong together.")


def _run(
    answer: Callable, file: Path, batches: list[Tensor], n: int, die_in: int | None = None
) -> tuple[_Process, list[int]]:
    """Calls the answer in what stands for a new process; returns it, and which micro-batches were used."""
    process, used = _Process(), []

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        if len(used) + 1 == die_in:
            raise _Killed
        used.append(next(place for place, known in enumerate(batches) if torch.equal(known, batch)))
        return squared_error(model, batch)

    with suppress(_Killed):
        answer(file, process.model, list(batches), loss_fn, process.optimizer, process.schedule, n)
    return process, used


@contextmanager
def _saves(die_in: int | None = None) -> Iterator[list]:
    """Counts the calls of `torch.save` in the block; one of them writes half of its file and dies."""
    save, calls = torch.save, []

    def counted(state: Any, file: Any, *arguments: Any, **options: Any) -> None:
        calls.append(file)
        if len(calls) != die_in:
            return save(state, file, *arguments, **options)
        whole = io.BytesIO()
        save(state, whole)
        half = whole.getvalue()[: whole.tell() // 2]
        file.write(half) if hasattr(file, "write") else Path(file).write_bytes(half)
        raise _Killed

    torch.save = counted
    try:
        yield calls
    finally:
        torch.save = save


def _compare(got: list[Tensor], batches: list[Tensor], n: int, case: str, known: Any) -> None:
    """Bit for bit; a bug is known by its result."""
    if close(got, _whole(batches, n), rtol=0, atol=0):
        return
    for bug, hint, result in known:
        if close(got, result()):
            raise Mistake(bug, f"{case}: {hint}.")
    raise Mistake("wrong-value", f"{case}: the result is not that of the whole run.")


def _shown(places: list[int]) -> str:
    return ", ".join(str(place + 1) for place in places) or "none"
