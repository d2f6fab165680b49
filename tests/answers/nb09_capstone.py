"""Answers to "production": one epoch with everything that a window can need."""

import inspect
import math
from itertools import islice

import torch
from torch import nn

from answers import outcomes, right, wrong
from course_utils import backward_window, mlp, train_epoch, windows
from course_utils.practice.exercises.nb09_capstone import LOOSE, TIGHT, Epoch, overflowing


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


@wrong("production", "forbidden-helper", says="train_epoch")
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


@right("production")
def with_islice(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    batches, losses = iter(batches), []
    model.zero_grad(set_to_none=False)
    while window := list(islice(batches, n)):
        tokens = [weight(batch) for batch in window]
        if not any(tokens):
            continue
        loss_of_window = torch.zeros((), dtype=torch.float64)
        for batch, count in zip(window, tokens, strict=True):
            if count == 0:
                continue
            loss = loss_fn(model, batch).mul(count).div(sum(tokens))
            scaler.scale(loss).backward()
            loss_of_window += loss.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        if torch.isfinite(norm):
            schedule.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss_of_window)
    return losses


@right("production")
def with_one_iterator(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule) -> list[float]:
    """Reads ahead by hand, and yields the log."""
    source = iter(batches)
    optimizer.zero_grad()
    while True:
        window = []
        try:
            while len(window) < n:
                window.append(next(source))
        except StopIteration:
            if not window:
                return
        total = sum(map(weight, window))
        if total == 0:
            continue
        log = []
        for batch in filter(weight, window):
            mean = loss_fn(model, batch)
            log.append(mean.item() * weight(batch) / total)
            scaler.scale(mean * torch.tensor(weight(batch) / total)).backward()
        scaler.unscale_(optimizer)
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        if finite:
            schedule.step()
        for p in model.parameters():
            p.grad = None
        yield sum(log)


@right("production")
def skips_by_itself(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    """Steps the optimizer itself after unscaling, and clips by hand."""
    losses = []
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for window in windows(batches, n):
        total = sum(weight(batch) for batch in window)
        if not total:
            continue
        optimizer.zero_grad()
        log = {}
        for i, batch in enumerate(window):
            if weight(batch) > 0:
                log[i] = loss_fn(model, batch) * weight(batch) / total
                scaler.scale(log[i]).backward()
                log[i] = log[i].item()
        scaler.unscale_(optimizer)
        norm = torch.cat([p.grad.flatten() for p in params]).norm().item()
        if math.isfinite(norm):
            for p in params:
                p.grad *= min(1, max_norm / norm)
            optimizer.step()
            schedule.step()
        scaler.update()
        losses.append(sum(log.values()))
    return losses


@right("production")
def with_a_generator_of_windows(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    def full_windows():
        for window in windows(batches, n):
            held = [(batch, weight(batch)) for batch in window if weight(batch)]
            if held:
                yield held, sum(count for _, count in held)

    def backward(batch, factor):
        loss = loss_fn(model, batch) * factor
        scaler.scale(loss).backward()
        return loss.detach()

    losses = []
    optimizer.zero_grad()
    for held, total in full_windows():
        losses.append(float(sum(backward(batch, count / total) for batch, count in held)))
        scaler.unscale_(optimizer)
        nn.utils.clip_grads_with_norm_(
            model.parameters(), max_norm, nn.utils.get_total_norm([p.grad for p in model.parameters()])
        )
        steps_before = optimizer.state_dict()["state"]
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if not steps_before and scaler.get_scale() < scale:
            pass
        elif scaler.get_scale() >= scale:
            schedule.step()
        optimizer.zero_grad()
    return losses


@right("production")
def with_the_limit_scaled(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    """Not unscaled before clipping, but the limit is that of the scaled gradient; the step unscales."""
    losses = []
    optimizer.zero_grad()
    for window in windows(list(batches), n):
        if total := sum(weight(batch) for batch in window):
            losses.append(0.0)
            for batch in window:
                if weight(batch):
                    loss = loss_fn(model, batch)
                    losses[-1] += float(loss) * weight(batch) / total
                    scaler.scale(loss).backward(torch.tensor(weight(batch) / total, dtype=loss.dtype))
            nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            schedule.step() if scaler.get_scale() >= before else None
            optimizer.zero_grad()
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

HELD = "        if total:\n            for batch in window:\n"
ITEM = LAST_IN_LOOP
BACKWARD = "                    scaler.scale(loss).backward()\n"
STEP = "            scaler.step(optimizer)\n"
APPEND = "            losses.append(window_loss)\n"
FIRST = "    losses = []\n"
LATE = "            window_loss = sum(float(loss_fn(model, b)) * weight(b) for b in window if weight(b)) / total\n"
ONCE = "            scaler.scale(whole).backward()\n"
for bug, *edits in (
    # Memory.
    ("held-graphs", (BACKWARD, BACKWARD.replace("backward()", "backward(retain_graph=True)"))),
    ("held-graphs", (BACKWARD, BACKWARD.replace("backward()", "backward(retain_graph=True)")), (".item()", "")),
    (
        "held-graphs",
        (BACKWARD, "                    whole = whole + loss\n"),
        (FIRST, FIRST + "    whole = 0.0\n"),
        (UNSCALE, ONCE + "            whole = 0.0\n" + UNSCALE),
    ),
    (
        "held-graphs",
        (BACKWARD, "                    kept.append(loss)\n"),
        (FIRST, FIRST + "    kept = []\n"),
        (UNSCALE, "            while kept:\n                scaler.scale(kept.pop()).backward()\n" + UNSCALE),
    ),
    # The log.
    ("logged-loss", (APPEND, "            losses.append(round(window_loss, 3))\n")),
    ("logged-loss", (APPEND, "            losses.append(window_loss / len(window))\n")),
    ("logged-loss", (APPEND, "            losses.append(loss.item())\n")),
    ("logged-loss", (APPEND, "            losses.append(window_loss * scale)\n")),
    ("logged-loss", (APPEND, "            losses.append(window_loss if scaler.get_scale() >= scale else 0.0)\n")),
    ("logged-loss", (APPEND, "            losses.append(window_loss if scaler.get_scale() >= scale else math.nan)\n")),
    (
        "logged-loss",
        (APPEND, "            if scaler.get_scale() >= scale:\n    " + APPEND),
    ),
    ("logged-loss", (APPEND, LATE + APPEND)),
    ("logged-loss", (STEP, STEP + LATE)),
    ("logged-loss", (LAST_IN_LOOP, "                    losses.append(loss.item())\n"), (APPEND, "")),
    ("logged-loss", (APPEND, ""), ("    return losses", "    return [window_loss]")),
    ("logged-loss", ("return losses", "return sorted(losses)")),
    ("logged-loss", ("return losses", "return losses[:-1]")),
    ("logged-loss", ("return losses", "return [sum(losses) / len(losses)]")),
    ("wrong-type", ("return losses", "return sum(losses) / len(losses)")),
    ("wrong-type", (APPEND, "            losses.append(str(window_loss))\n")),
    ("logged-loss", (APPEND, "            losses.append(window_loss * total)\n")),
    ("logged-loss", (APPEND, "            losses.append(sum(losses) + window_loss)\n")),
    ("held-graphs", (".item()", ""), (FIRST, FIRST + "    # the log keeps tensors, which their graphs hold\n")),
    # Weights.
    ("token-weights", (SHARE, "(1 / sum(1 for b in window if weight(b)))")),
    ("loss-scale", (SHARE, "(weight(batch) / total / len(window))")),
    ("loss-scale", (SHARE, "weight(batch)")),
    ("loss-scale", (SHARE, "(weight(batch) / total / n)")),
    ("loss-scale", (BACKWARD, BACKWARD.replace("loss)", "loss / scaler.get_scale())"))),
    ("low-precision", (SHARE, "round(weight(batch) / total, 3)")),
    # Windows.
    ("irregular-window", ("windows(batches, n)", "windows(batches, 1)")),
    ("irregular-window", ("windows(batches, n)", "windows(batches, n + 1)")),
    ("leftover-gradients", ("        if total:", "        if all(map(weight, window)):")),
    ("leftover-gradients", ("        if total:", "        if not total:\n            break\n        if total:")),
    ("logged-loss", ("        if total:", "        if not total:\n            losses.append(0.0)\n        if total:")),
    ("filtered-windows", ("windows(batches, n)", "windows((b for b in batches if weight(b)), n)")),
    ("discarded-gradients", (BACKWARD, "                    optimizer.zero_grad()\n" + BACKWARD)),
    ("discarded-gradients", (UNSCALE, "            optimizer.zero_grad()\n" + UNSCALE)),
    ("leftover-gradients", (STEP, "")),
    ("stale-gradients", LAST_ZERO),
    ("wrong-value", (LAST_ZERO[0], "            next(model.parameters()).grad = None\n            losses.append")),
    (
        "stale-gradients",
        LAST_ZERO,
        (
            "                schedule.step()\n",
            "                schedule.step()\n                optimizer.zero_grad()\n",
        ),
    ),
    # Clipping.
    ("clip-limit", (CLIP, CLIP.replace("max_norm", "1.0"))),
    ("clip-limit", (CLIP, CLIP.replace("max_norm", "1e-3"))),
    ("clip-timing", (CLIP, CLIP.replace("max_norm", "max_norm / scaler.get_scale()"))),
    ("clip-timing", (CLIP, CLIP.replace("grad_norm_", "grad_value_"))),
    ("clip-limit", (CLIP, "            for p in model.parameters():\n    " + CLIP.replace("model.parameters()", "p"))),
    ("clip-timing", (CLIP, ""), (STEP, STEP + CLIP)),
    ("clip-timing", (UNSCALE + CLIP, CLIP)),
    # Scaler and scheduler.
    ("scaler-timing", (UNSCALE, UNSCALE + UNSCALE)),
    ("scaler-timing", (UNSCALE, ""), (LAST_IN_LOOP, "                    scaler.unscale_(optimizer)\n" + LAST_IN_LOOP)),
    ("scaler-timing", ("            scaler.update()\n", "            scaler.update()\n            scaler.update()\n")),
    ("scaler-timing", (STEP, "            optimizer.step()\n")),
    ("scaler-timing", (STEP, ""), (LAST_IN_LOOP, LAST_IN_LOOP + "        " + STEP)),
    ("scaler-timing", ("            scaler.update()\n", ""), ("    return", "    scaler.update()\n    return")),
    (
        "scheduler-cadence",
        (STEP_SCHEDULE, ""),
        ("    return losses", "    schedule.step()\n    return losses"),
    ),
    ("scheduler-cadence", (STEP_SCHEDULE, ""), (UNSCALE, UNSCALE + "            schedule.step()\n")),
    ("scheduler-cadence", ("scaler.get_scale() >= scale:", "scaler.get_scale() > scale:")),
    ("scheduler-cadence", ("scaler.get_scale() >= scale:", "total:")),
    ("scheduler-cadence", ("scaler.get_scale() >= scale:", "math.isfinite(window_loss):")),
    (
        "scheduler-cadence",
        ("        if total:", "        if not total:\n            schedule.step()\n        if total:"),
    ),
    # What the task says of the data.
    ("needs-length", (FIRST, FIRST + "    last = len(batches) - 1\n")),
    ("needs-length", (FIRST, FIRST + "    batches[0]\n")),
    ("raises", ("weight(batch) / total", "weight(batch) / totals")),
):
    wrong("production", bug)(edited(*edits))


@right("production")
def with_backward_window(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        if any(map(weight, window)):
            losses.append(backward_window(model, window, loss_fn, weight, scaler=scaler))
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            if norm.isfinite():
                schedule.step()
            optimizer.zero_grad()
    return losses


@wrong("production", "held-graphs")
def joins_the_losses(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    losses = []
    for window in windows(batches, n):
        held = [batch for batch in window if weight(batch)]
        if held:
            optimizer.zero_grad()
            loss = sum(loss_fn(model, batch) * weight(batch) for batch in held) / sum(map(weight, held))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            if norm.isfinite():
                schedule.step()
            losses.append(loss.item())
    return losses


@wrong("production", "token-weights")
def as_in_the_tutorials(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
    losses, running = [], 0.0
    for i, batch in enumerate(batches, start=1):
        loss = loss_fn(model, batch) / n
        scaler.scale(loss).backward()
        running += loss.item()
        if i % n == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
            losses.append(running)
            running = 0.0
    return losses


wrong(
    "production",
    "scheduler-cadence",
    says="and at the end: [0, 1, 1, 2], expected [0, 1, 2, 3]: the scale went from 256 to 512.",
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
        return overflowing((model(rows[:, :3]) - rows[:, 3:]).square().mean(), batch)

    def weight(batch):
        return batch.tokens

    losses = answer(model, iter(batches), loss_fn, optimizer, epoch.n, weight, scaler, epoch.max_norm, schedule)
    log = [float(loss) for loss in losses]
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return [*weights, len(steps), schedule.last_epoch, scaler.get_scale(), *log]
