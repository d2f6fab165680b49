"""The exercise of *checkpoints* that kills a training function in every micro-batch and in every save."""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import LambdaLR

from course_utils.practice.bench import Exercise, Mistake, Seen, agree, edits
from course_utils.practice.loop import Weights


class Killed(BaseException):
    """The process dies. Not an `Exception`, so that nothing catches it by accident."""


class Process:
    """What the script creates before it calls the training function: always the same."""

    def __init__(self):
        torch.default_generator.manual_seed(3)
        layers = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
        self.model = nn.Sequential(*layers).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.125, momentum=0.5)
        self.schedule = LambdaLR(self.optimizer, lambda update: 0.5**update)
        self.used: list[int] = []  # micro-batches

    def result(self) -> Weights:
        """All that the run produced: parameters and buffers, momentum, and the learning rate."""
        values = {**self.model.state_dict(), "learning rate": torch.tensor(self.optimizer.param_groups[0]["lr"])}
        for place, state in enumerate(self.optimizer.state.values()):
            values |= {f"momentum {place}": state["momentum_buffer"]} if state else {}
        return Weights({name: value.detach().double().clone() for name, value in values.items()})

    def run(self, answer: Callable, file: Path, case: "Case", batch: int = 0, save: int = 0) -> int:
        """Calls the answer; dies in a micro-batch or a save. Returns how often `torch.save` was called."""
        batches = [
            torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in range(case.many)
        ]

        def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
            if len(self.used) + 1 == batch:
                raise Killed
            self.used.append(next(place for place, known in enumerate(batches, start=1) if torch.equal(known, x)))
            return mse_loss(model(x[:, :3]), x[:, 3:])

        with suppress(Killed), _saves(save) as saves:
            answer(file, self.model, list(batches), loss_fn, self.optimizer, self.schedule, case.n)
        return len(saves)


class Case(NamedTuple):
    many: int
    n: int
    batch: int = 0  # the micro-batch in which the process is killed
    saves: bool = False  # whether it is killed in each save

    def __str__(self) -> str:
        killed = f", killed in micro-batch {self.batch}" * bool(self.batch) + ", killed in each save" * self.saves
        return f"{self.many} micro-batches, N = {self.n}{killed}"


def solution(file, model, batches, loss_fn, optimizer, schedule, n):
    """It saves after each micro-batch, so that an edit shows wherever an answer saves."""
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    done = 0
    if os.path.exists(file):
        saved = torch.load(file, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        for p, gradient in zip(model.parameters(), saved["gradients"], strict=True):
            p.grad = gradient
        torch.set_rng_state(saved["random numbers"])
        done = saved["done"]
    count = done
    for batch in batches[done:]:
        (loss_fn(model, batch) / n).backward()
        done, count = done + 1, count + 1
        if count % n == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        saved = {name: part.state_dict() for name, part in parts.items()}
        saved |= {"gradients": [p.grad for p in model.parameters()]}
        saved |= {"random numbers": torch.get_rng_state(), "done": done}
        torch.save(saved, f"{file}.new")
        os.replace(f"{file}.new", file)


def watch(answer: Callable, case: Case) -> Seen:
    """Watches a whole run, or what the next process makes of one that was killed."""
    if case.batch:
        after = _after(answer, case, batch=case.batch)
        first, border = min(after.used, default=1), (case.batch - 1) // case.n * case.n + 1
        goes_on = border <= first <= case.batch and after.used == [*range(first, case.many + 1)]
        return {"the next process goes on with": [] if goes_on else after.used, "its result": after.result()}
    with tempfile.TemporaryDirectory() as folder:
        whole = Process()
        saves = whole.run(answer, Path(folder) / "last.pt", case)
    if not whole.used:
        raise Mistake("not-attempted", "your function has not called loss_fn yet.")
    if not case.saves:
        return {"micro-batches that were used": whole.used, "result": whole.result()}
    torn = []
    for save in range(1, saves + 1):
        try:
            torn += [save] * (not agree(_after(answer, case, save=save).result(), whole.result(), 0.0))
        except Exception as error:
            found = "the next process found no file that it can read"
            raise Mistake("torn-file", f"{case}: after save {save} {found}.") from error
    return {"saves after which the next process found parts that do not belong together": torn}


def _after(answer: Callable, case: Case, **kill: int) -> Process:
    """The process that follows on one that was killed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last.pt"
        Process().run(answer, file, case, **kill)
        after = Process()
        after.run(answer, file, case)
    return after


@contextmanager
def _saves(die_in: int) -> Iterator[list]:
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
        raise Killed

    torch.save = counted
    try:
        yield calls
    finally:
        torch.save = save


LOAD = "part.load_state_dict(saved[name])"
AGAIN = "[p.data.copy_(first) for p, first in zip(model.parameters(), start, strict=True)]"
WHOLE = "count = done\nfor"  # before which some of the model starts over
TRAIN_ON = Exercise(
    "train_on",
    "checkpoints",
    watch,
    solution,
    cases=[
        Case(many, n, **killed)
        for many, n in ((8, 4), (6, 3))
        for killed in ({}, *({"batch": number} for number in range(1, many + 1)), {"saves": True})
    ],
    edits=[
        *edits("loss-scale", " / n).backward()", ").backward()"),
        *edits("stale-gradients", "optimizer.zero_grad()", "pass"),
        *edits("scheduler-cadence", "schedule.step()", "pass"),
        *edits(
            "scheduler-cadence/each", "if count % n == 0:", "if count % n:\n    schedule.step()\nif count % n == 0:"
        ),
        *edits("starts-over", "os.path.exists(file)", "False"),
        *edits("drops-gradients", "p.grad = gradient", "pass"),
        *edits("drops-optimizer", LOAD, f"name == 'optimizer' or {LOAD}"),
        *edits("drops-schedule", LOAD, f"name == 'schedule' or {LOAD}"),
        *edits("drops-random-numbers", 'torch.set_rng_state(saved["random numbers"])', "pass"),
        *edits("drops-buffers", WHOLE, f"[m.reset_running_stats() for m in model if m._buffers]\n{WHOLE}"),
        *edits("drops-parameters", LOAD, f"start = [p.clone() for p in model.parameters()]; {LOAD}; {AGAIN}"),
        *edits("shifted-windows", WHOLE, "count = 0\nfor"),
    ],
    channels={
        "micro-batches that were used": "wrong-batches",
        "the next process goes on with": "wrong-batches/after",
        "saves after which the next process found parts that do not belong together": "torn-file",
    },
    extra=60.0,
    rtol=0.0,
)
