"""The exercise of *checkpoints*, which kills a training function in a micro-batch or in a save."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import nn

from course_utils.exercises.judging import Mistake, agree, exercise, not_attempted, same
from course_utils.loops import train_epoch

HINT = "Is every part of a run in the file, and loaded again? Where is the last good file while you write the next one?"


class Killed(BaseException):
    """The process dies. Not an `Exception`, so that nothing catches it by accident."""


def whole_run(_, model, batches, loss_fn, optimizer, schedule, n):
    train_epoch(model, batches, loss_fn, optimizer, n, scheduler=schedule)


def process(answer, file, case=""):
    """Runs one process of a script: the number of its micro-batches, and the model at the end."""
    torch.default_generator.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.5**update)
    save, batches, events = torch.save, [*torch.randn(8, 4, 5)], []

    def happens(what):
        events.append(what)
        if case == f"killed in {what} {events.count(what)}":
            raise Killed

    def loss_fn(model, x):
        happens("micro-batch")
        return nn.functional.mse_loss(model(x[:, :3]), x[:, 3:])

    def save_or_die(obj, f, *more, **options):
        if isinstance(f, str | Path):
            Path(f).write_bytes(b"")  # torch.save begins with that, too
        happens("save")
        save(obj, f, *more, **options)

    with suppress(Killed), patch.object(torch, "save", save_or_die):
        answer(file, model, batches, loss_fn, optimizer, schedule, 2)  # halves of a loss are exact
    return events.count("micro-batch"), [*model.state_dict().values()]


@exercise("killed in micro-batches and in the middle of saves: the same run, bit for bit.")
def train_on(answer):
    _, want = process(whole_run, None)
    for case in ("killed at the end", "killed in micro-batch 6", "killed in save 1", "killed in save 2"):
        with TemporaryDirectory() as folder:
            file = Path(folder) / "last.pt"
            if not process(answer, file, case)[0]:
                raise not_attempted("your function has not called loss_fn yet.")
            try:
                ran, model = process(answer, file)
            except Exception as error:
                raise Mistake("no-restart", f"{case}, then {type(error).__name__}: {error}.", HINT) from error
        again = max(ran - 4, 0) if "micro-batch" in case else 0  # of 8, the last 4 have to run
        same(f"{case}: micro-batches with an update that ran again", again, 0, hint=HINT)
        same(f"{case}: the model at the end is that of a whole run", agree(model, want, 0.0, 0.0), True, hint=HINT)
