"""The exercise of *checkpoints*, which kills a training function in a micro-batch or in a save."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import Tensor, nn

from course_utils.exercises.bench import Exercise, Mistake, Seen, edits
from course_utils.exercises.loop import Weights

MANY, N = 9, 3  # micro-batches of a run, and of a window


class Killed(BaseException):
    """The process dies. Not an `Exception`, so that nothing catches it by accident."""


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


def process(answer: Callable, file: Path, dies: str = "") -> tuple[int, Weights]:
    """One process of a script that calls the answer: how many micro-batches it ran, and the model that it leaves."""
    torch.default_generator.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.5**update)
    batches = [*torch.randn(MANY, 4, 5, dtype=torch.float64)]
    save, events = torch.save, []

    def happens(what: str) -> None:
        events.append(what)
        if dies == f"killed in {what} {events.count(what)}":
            raise Killed

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        happens("micro-batch")
        return nn.functional.mse_loss(model(x[:, :3]), x[:, 3:])

    def save_or_die(obj: object, f: object, *more: object, **options: object) -> None:
        if isinstance(f, str | Path):
            Path(f).write_bytes(b"")  # torch.save begins with that, too
        happens("save")
        save(obj, f, *more, **options)

    with suppress(Killed), patch.object(torch, "save", save_or_die):
        answer(file, model, batches, loss_fn, optimizer, schedule, N)
    return events.count("micro-batch"), Weights({name: value.double() for name, value in model.state_dict().items()})


def watch(answer: Callable, killed: str) -> Seen:
    """Watches a whole run, or the process that follows on one that was killed."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "last.pt"
        if killed:
            process(answer, file, killed)
        ran, model = process(answer, file)
    if not ran and not killed:
        raise Mistake("not-attempted", "your function has not called loss_fn yet.")
    batch = int(killed.rpartition(" ")[2]) if "micro-batch" in killed else 1
    since_the_last_step = MANY - (batch - 1) // N * N
    return {"the model at the end": model, "it starts over": ran > since_the_last_step}


LOAD = "part.load_state_dict(saved[name])"
WHOLE = "count = done\nfor"  # before which some of the model starts over
RENAME = 'torch.save(saved, f"{file}.new")\nos.replace(f"{file}.new", file)'
TRAIN_ON = Exercise(
    "train_on",
    "checkpoints",
    watch,
    solution,
    cases=["", "killed in micro-batch 4", "killed in micro-batch 8", "killed in save 1", "killed in save 2"],
    edits=[
        *edits("loss-scale", " / n).backward()", ").backward()"),
        *edits("stale-gradients", "optimizer.zero_grad()", "pass"),
        *edits("scheduler-cadence", "schedule.step()", "pass"),
        *edits("drops-gradients", "p.grad = gradient", "pass"),
        *edits("drops-optimizer", LOAD, f"name == 'optimizer' or {LOAD}"),
        *edits("drops-schedule", LOAD, f"name == 'schedule' or {LOAD}"),
        *edits("drops-random-numbers", 'torch.set_rng_state(saved["random numbers"])', "pass"),
        *edits("drops-buffers", WHOLE, f"[m.reset_running_stats() for m in model if m._buffers]\n{WHOLE}"),
        *edits("shifted-windows", WHOLE, "count = 0\nfor"),
        *edits("torn-file", RENAME, "torch.save(saved, file)"),
    ],
    channels={"it starts over": "starts-over"},
    rtol=0.0,
)
