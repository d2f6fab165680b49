"""The exercise of *checkpoints*, which kills a training function in a micro-batch or in a save."""

from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import nn

from course_utils.exercises.judging import Mistake, agree, exercise, not_attempted

MANY, N = 9, 3  # micro-batches of a run, and of a window
PARTS = "weights", "gradients", "schedule", "optimizer", "random-numbers", "buffers"  # compared at each micro-batch
LOST = "Which parts of a run does no `state_dict` of the model hold? Is each of them in the file, and loaded again?"
COUNT = "Where in its window is the first micro-batch after a resume? Count on."
WHOLE = "Compare your loop with one that saves nothing. When does it call what?"
READS = "Is the file there when the function is called again, and does anything read it?"
TORN = "Where is the last good file while you write the next one? A rename replaces it in one step."


class Killed(BaseException):
    """The process dies. Not an `Exception`, so that nothing catches it by accident."""


def whole_run(_, model, batches, loss_fn, optimizer, schedule, n):
    for k, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if k % n == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def process(answer, file, dies=""):
    """One process of a script that calls the answer. Returns what each micro-batch found, and the model at the end."""
    torch.default_generator.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.5**update)
    batches = [*torch.randn(MANY, 4, 5, dtype=torch.float64)]
    save, events, found = torch.save, [], {}

    def happens(what):
        events.append(what)
        if dies == f"{what} {events.count(what)}":
            raise Killed

    def loss_fn(model, x):
        happens("micro-batch")
        weights = [*model.parameters()]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
        momentum = [optimizer.state.get(p, {}).get("momentum_buffer") for p in weights]
        state = weights, gradients, schedule.last_epoch, momentum, torch.get_rng_state(), [*model.buffers()]
        found.setdefault(1 + [torch.equal(x, batch) for batch in batches].index(True), deepcopy(state))
        return nn.functional.mse_loss(model(x[:, :3]), x[:, 3:])

    def save_or_die(obj, f, *more, **options):
        if isinstance(f, str | Path):
            Path(f).write_bytes(b"")  # torch.save begins with that, too
        happens("save")
        save(obj, f, *more, **options)

    with suppress(Killed), patch.object(torch, "save", save_or_die):
        answer(file, model, batches, loss_fn, optimizer, schedule, N)
    return found, [*model.state_dict().values()]


@exercise
def train_on(answer):
    want, end = process(whole_run, None)
    for killed in ("", "micro-batch 4", "micro-batch 8", "save 1", "save 2"):
        case = f"killed in {killed}: " if killed else ""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "last.pt"
            if killed:
                process(answer, file, killed)
            try:
                found, model = process(answer, file)
            except Exception as error:
                if "save" in killed:
                    raise Mistake("torn-file", f"{case}then {type(error).__name__}: {error}.", TORN) from error
                raise
        if not found and not killed:
            raise not_attempted("your function has not called loss_fn yet.")
        first = min(found, default=MANY)
        if "micro-batch" in killed and first <= (int(killed[-1]) - 1) // N * N:
            raise Mistake("starts-over", f"{case}it goes on at micro-batch {first}, before the last step.", READS)
        if agree(model, end, 0.0, 0.0):
            continue
        if "save" in killed:
            raise Mistake("torn-file", f"{case}the model at the end is another one.", TORN)
        for number, (k, part) in ((number, each) for number in found for each in enumerate(PARTS)):
            if not agree(found[number][k], want[number][k], 0.0, 0.0):
                what = f"{case}at micro-batch {number}, not as in a whole run: {part.replace('-', ' ')}."
                if not killed:
                    raise Mistake("scheduler-cadence" if part == "schedule" else "wrong-value", what, WHOLE)
                raise Mistake(*(f"drops-{part}", what, LOST) if number == first else ("shifted-windows", what, COUNT))
        what = f"{case}micro-batches {[*found]} ran as in a whole run, but the model at the end is another one."
        shifted = killed and max(found, default=0) == MANY
        raise Mistake(*("shifted-windows", what, COUNT) if shifted else ("wrong-value", what, WHOLE))
    return "killed in micro-batches and in the middle of saves: the same run, bit for bit."
