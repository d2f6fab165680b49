"""Answers to "production": one epoch with everything that a window can need."""

import inspect

import torch
from torch import nn

from answers import outcomes, right, wrong
from course_utils import mlp, train_epoch, windows
from course_utils.practice.exercises.nb09_capstone import LOOSE, TIGHT, Epoch


def with_lists(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        total, window_loss = sum(weight(batch) for batch in window), 0.0
        if total:
            for batch in window:
                if weight(batch):
                    loss = loss_fn(model, batch) * (weight(batch) / total)
                    scaler.scale(loss).backward()
                    window_loss += loss.item()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() >= scale:
                schedule.step()
            optimizer.zero_grad()
            losses.append(window_loss)
    return losses


right("production")(with_lists)


@right("production")
def with_the_helper(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    return train_epoch(
        model, batches, loss_fn, optimizer, n, weight, scaler=scaler, max_norm=max_norm, scheduler=schedule
    )


@right("production")
def with_sums(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    """Backward on sums, and one division of the gradients at the end of the window."""
    losses, held = [], []
    model.zero_grad()

    def update():
        total = sum(weight(batch) for batch, _ in held)
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad /= total
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        skipped_before = len(steps)
        scaler.step(optimizer)
        scaler.update()
        if len(steps) > skipped_before:
            schedule.step()
        for p in model.parameters():
            p.grad = None
        losses.append(sum(loss for _, loss in held) / total)
        held.clear()

    steps = []
    hook = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for seen, batch in enumerate(batches, start=1):
        if weight(batch):
            loss = loss_fn(model, batch) * weight(batch)
            scaler.scale(loss).backward()
            held.append((batch, loss.item()))
        if seen % n == 0 and held:
            update()
    if held:
        update()
    hook.remove()
    return losses


def edited(*edits):
    """The first answer with some places of its source changed."""
    source = inspect.getsource(with_lists)
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    namespace = dict(globals())
    exec(source, namespace)
    return namespace["with_lists"]


UNSCALE = "            scaler.unscale_(optimizer)\n"
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
SHARE = "(weight(batch) / total)"
STEP_SCHEDULE = "            if scaler.get_scale() >= scale:\n                schedule.step()\n"
LAST_IN_LOOP = "                    window_loss += loss.item()\n"
FIRST_ZERO = ("    losses = []\n    optimizer.zero_grad()\n", "    losses = []\n")
LAST_ZERO = ("            optimizer.zero_grad()\n            losses.append", "            losses.append")
NEVER_0 = ("sum(weight(batch) for batch in window), 0.0", "sum(weight(batch) for batch in window) or 1, 0.0")

for bug, *edits in (
    ("leftover-gradients", ("        if total:", "        if total and len(window) == n:")),
    ("loss-scale", (SHARE, "1.0")),
    ("loss-scale", (SHARE, "(weight(batch) / total * len(window) / n)")),
    ("token-weights", (SHARE, "(1 / len(window))")),
    ("stale-gradients", FIRST_ZERO),
    ("stale-gradients", FIRST_ZERO, LAST_ZERO),
    (
        "discarded-gradients",
        (LAST_IN_LOOP, LAST_IN_LOOP + "                    batch is window[-1] or optimizer.zero_grad()\n"),
    ),
    ("clip-timing", (UNSCALE + CLIP, CLIP + UNSCALE)),
    ("clip-timing", (CLIP, ""), (LAST_IN_LOOP, LAST_IN_LOOP + "        " + CLIP)),
    ("clip-timing", (CLIP, "")),
    ("clip-timing", (UNSCALE, "")),
    (
        "scheduler-cadence",
        (STEP_SCHEDULE, ""),
        (LAST_IN_LOOP, LAST_IN_LOOP + "                    schedule.step()\n"),
    ),
    ("scheduler-cadence", (STEP_SCHEDULE, "            schedule.step()\n")),
    ("scheduler-cadence", (STEP_SCHEDULE, "")),
    ("scheduler-cadence", ("if scaler.get_scale() >= scale:", "if scaler.get_scale() == scale:")),
    ("empty-micro-batch", NEVER_0, ("                if weight(batch):", "                if True:")),
    ("empty-step", NEVER_0),
    ("empty-step", ("        if total:", "        if True:")),
    ("scaler-timing", ("            scaler.update()\n", "")),
    ("scaler-timing", (LAST_IN_LOOP, "                    scaler.update()\n" + LAST_IN_LOOP)),
    ("logged-loss", (LAST_IN_LOOP, LAST_IN_LOOP.replace("loss.item()", "loss_fn(model, batch).item()"))),
    ("wrong-type", ("return losses", "return None")),
    ("needs-length", ("    for window in windows", "    len(batches)\n    for window in windows")),
):
    wrong("production", bug)(edited(*edits))

wrong(
    "production",
    "scheduler-cadence",
    says="and at the end: [0, 1, 1], expected [0, 1, 2]: the scale went from 256 to 512.",
)(edited(("if scaler.get_scale() >= scale:", "if scaler.get_scale() == scale:")))
wrong("production", "not-attempted")(lambda *_: [])
wrong("production", "empty-step")(lambda *a: a[3].step())


@wrong("production", "not-attempted")
def stub(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    for _ in windows(batches, n):
        ...


@outcomes("production", mutants=50)
def outcomes_of_production(answer):
    """The weights, updates, scheduler steps, scale and log of epochs that the judge does not use."""
    for epoch in (
        Epoch((0, 0, 3, 1), 2, dirty=True),
        Epoch((0, 4, 1, 0, 2), 3, TIGHT, overflow=4, dirty=True),
        Epoch((1, 2, 3, 4, 3, 2, 1), 3, overflow=0),
        Epoch((4, 0, 1, 2, 0), 1, TIGHT),
        Epoch((2, 3, 0, 0), 2, TIGHT, scaled=False),
        Epoch((2, 3, 4, 1, 2), 2, LOOSE),
    ):
        yield lambda epoch=epoch: trained(answer, epoch)


def trained(answer, epoch):
    generator = torch.Generator().manual_seed(sum(epoch.tokens))
    torch.manual_seed(epoch.n)
    model = mlp(3, 4, 2).double()
    for p in model.parameters():
        p.grad = torch.ones_like(p) if epoch.dirty else None
    batches = epoch.batches([torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in epoch.tokens])
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5), []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2, enabled=epoch.scaled)

    def loss_fn(model, batch):
        rows = batch.rows[: batch.tokens]
        return (model(rows[:, :3]) - rows[:, 3:]).square().mean() * batch.factor

    def weight(batch):
        return batch.tokens

    losses = answer(model, iter(batches), loss_fn, optimizer, epoch.n, weight, scaler, epoch.max_norm, schedule)
    log = [float(loss) for loss in losses] if epoch.overflow < 0 else []  # an infinite loss may be logged in any way
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return [*weights, len(steps), schedule.last_epoch, scaler.get_scale(), *log]
