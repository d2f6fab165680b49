"""Answers to "train_on": a training function that is killed."""

import os
from pathlib import Path

import torch

from answers import right, wrong


def answer(leave_out=(), every=1, also=None, count_from=None, write=None, divide=True, zero=True, cadence="update"):
    """A training function that saves after every so many micro-batches, or once per window if `every` is None.

    It also saves in each window after its micro-batch `also`.
    """

    def train_on(file, model, batches, loss_fn, optimizer, schedule, n):
        done = 0
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        if os.path.exists(file):
            saved = torch.load(file)
            done = saved["done"]
            for name in parts.keys() & saved.keys():
                parts[name].load_state_dict(saved[name], **({"strict": False} if name == "model" else {}))
            if "gradients" in saved:
                for p, gradient in zip(model.parameters(), saved["gradients"], strict=True):
                    p.grad = gradient
            if "random numbers" in saved:
                torch.set_rng_state(saved["random numbers"])
        count = done if count_from is None else count_from
        for batch in batches[done:]:
            loss = loss_fn(model, batch)
            (loss / n if divide else loss).backward()
            done, count = done + 1, count + 1
            if count % n == 0:
                optimizer.step()
                if zero:
                    optimizer.zero_grad()
            if cadence == "micro-batch" or (cadence == "update" and count % n == 0):
                schedule.step()
            if done % (every or n) == 0 or done % n == also:
                state = {name: part.state_dict() for name, part in parts.items()}
                state |= {"gradients": [p.grad for p in model.parameters()], "random numbers": torch.get_rng_state()}
                state = {name: state[name] for name in state if name not in leave_out}
                for kind in ("parameters", "buffers"):
                    if kind in leave_out:
                        for name, _ in getattr(model, f"named_{kind}")():
                            del state["model"][name]
                (write or replace)({**state, "done": done}, file)

    return train_on


def replace(state, file):
    torch.save(state, f"{file}.new")
    os.replace(f"{file}.new", file)


def to_an_open_file(state, file):
    new = Path(file).with_suffix(".new")
    with open(new, "wb") as opened:
        torch.save(state, opened)
    new.rename(file)


def in_place(state, file):
    torch.save(state, file)


right("train_on")(answer())
right("train_on")(answer(write=to_an_open_file))
right("train_on")(answer(every=None, also=2))
right("train_on")(answer(every=None))
right("train_on")(answer(every=None, leave_out=("gradients",)))


for piece, bug in {
    "gradients": "drops-gradients",
    "optimizer": "drops-optimizer",
    "schedule": "drops-schedule",
    "random numbers": "drops-random-numbers",
    "buffers": "drops-buffers",
    "parameters": "drops-parameters",
}.items():
    wrong("train_on", bug)(answer(leave_out=(piece,)))
    if piece != "gradients":
        wrong("train_on", bug)(answer(leave_out=(piece,), every=None))

wrong("train_on", "shifted-windows")(answer(count_from=0))
wrong("train_on", "torn-file")(answer(write=in_place))
wrong("train_on", "loss-scale")(answer(divide=False))
wrong("train_on", "stale-gradients")(answer(zero=False))
wrong("train_on", "scheduler-cadence", says="never steps")(answer(cadence="never"))
wrong("train_on", "starts-over", says="killed in micro-batch 5")(answer(every=100))


@wrong("train_on", "wrong-batches")
def skips_updates(file, model, batches, loss_fn, optimizer, schedule, n):
    """Takes the number of updates for a number of micro-batches."""
    parts, updates = (model, optimizer, schedule), 0
    if os.path.exists(file):
        updates, random, *states = torch.load(file)
        torch.set_rng_state(random)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
    for number, batch in enumerate(batches[updates:], start=1):
        (loss_fn(model, batch) / n).backward()
        if number % n == 0:
            optimizer.step(), schedule.step(), optimizer.zero_grad()
            updates += 1
            replace([updates, torch.get_rng_state(), *(part.state_dict() for part in parts)], file)


@wrong("train_on", "raises")
def loads_what_is_not_there(file, *_):
    torch.load(file)


@wrong("train_on", "wrong-value")
def halves_the_learning_rate(file, model, batches, loss_fn, optimizer, schedule, n):
    optimizer.param_groups[0]["lr"] /= 2
    answer()(file, model, batches, loss_fn, optimizer, schedule, n)
