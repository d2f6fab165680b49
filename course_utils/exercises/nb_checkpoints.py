"""The exercise of *checkpoints*, which kills a training function in a micro-batch or in a save."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import nn

from course_utils.exercises.judging import Mistake, agree, exercise, not_attempted, same
from course_utils.loops import train_epoch

LOST = "Which parts of a run does no `state_dict` of the model hold? Is each in the file, and loaded again? Count on."
TORN = "Where is the last good file while you write the next one? A rename replaces it in one step."


class Killed(BaseException):
    """The process dies. Not an `Exception`, so that nothing catches it by accident."""


def whole_run(_, model, batches, loss_fn, optimizer, schedule, n):
    train_epoch(model, batches, loss_fn, optimizer, n, scheduler=schedule)


def process(answer, file, dies=""):
    """Runs one process of a script: the number of its micro-batches, and the model at the end."""
    torch.default_generator.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.5**update)
    save, batches, events = torch.save, [*torch.randn(8, 4, 5)], []

    def happens(what):
        events.append(what)
        if dies == f"{what} {events.count(what)}":
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


@exercise
def train_on(answer):
    _, want = process(whole_run, None)
    for killed in ("", "micro-batch 6", "save 1", "save 2"):
        case = f"killed in {killed}" if killed else "never killed"
        with TemporaryDirectory() as folder:
            file = Path(folder) / "last.pt"
            if killed:
                process(answer, file, killed)
            try:
                ran, model = process(answer, file)
            except Exception as error:
                if "save" not in killed:
                    raise
                raise Mistake("torn-file", f"{case}, then {type(error).__name__}: {error}.", TORN) from error
        if not ran and not killed:
            raise not_attempted("your function has not called loss_fn yet.")
        again = max(ran - 4, 0) if "micro-batch" in killed else 0  # of 8, the last 4 have to run
        same(f"{case}: micro-batches with an update that ran again", again, 0, ("starts-over", "", LOST))
        otherwise = ("torn-file", "", TORN) if "save" in killed else ("wrong-value", "", LOST)
        same(f"{case}: the model at the end is that of a whole run", agree(model, want, 0.0, 0.0), True, otherwise)
    return "killed in micro-batches and in the middle of saves: the same run, bit for bit."
