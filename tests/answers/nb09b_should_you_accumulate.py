"""Answers to "survive": a window that survives running out of memory."""

import inspect

import torch

from answers import outcomes, right, wrong
from course_utils import Tally, windows

OOM = torch.OutOfMemoryError


def halves_until_it_fits(model, items, loss_fn, optimizer, size):
    while True:
        optimizer.zero_grad()
        try:
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            break
        except OOM:
            if size == 1:
                raise
        size //= 2
    optimizer.step()
    optimizer.zero_grad()
    return size


right("survive")(halves_until_it_fits)


@right("survive")
def by_recursion(model, items, loss_fn, optimizer, size):
    """The next attempt is called after the except has ended."""
    model.zero_grad()
    failed = False
    try:
        for part in windows(items, size):
            (loss_fn(model, torch.stack(part)) * len(part) / len(items)).backward()
    except OOM:
        failed = True
        if size < 2:
            model.zero_grad()
            raise
    if failed:
        return by_recursion(model, items, loss_fn, optimizer, size // 2)
    optimizer.step()
    model.zero_grad()
    return size


@right("survive")
def only_the_failed_part_again(model, items, loss_fn, optimizer, size):
    """A forward that fails leaves nothing behind: the rest may go on in smaller parts."""
    optimizer.zero_grad()
    done = 0
    while done < len(items):
        part = items[done : done + size]
        try:
            loss = loss_fn(model, part) * len(part) / len(items)
        except OOM:
            if size == 1:
                raise
            size //= 2
            continue
        loss.backward()
        done += len(part)
    optimizer.step()
    optimizer.zero_grad()
    return size


@right("survive")
def halved_in_the_except(model, items, loss_fn, optimizer, size):
    """Only the number is halved there; the attempt itself comes after it."""
    while True:
        try:
            optimizer.zero_grad()
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            break
        except OOM:
            if size == 1:
                raise
            size //= 2
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "kept-activations")
def recursion_in_the_except(model, items, loss_fn, optimizer, size):
    optimizer.zero_grad()
    try:
        for part in items.split(size):
            (loss_fn(model, part) * (len(part) / len(items))).backward()
    except OOM:
        if size == 1:
            raise
        return recursion_in_the_except(model, items, loss_fn, optimizer, size // 2)
    optimizer.step()
    optimizer.zero_grad()
    return size


def edited(old, new):
    """The first answer with one place of its source changed."""
    source = inspect.getsource(halves_until_it_fits)
    assert source.count(old) == 1
    namespace = dict(globals())
    exec(source.replace(old, new), namespace)
    return namespace["halves_until_it_fits"]


for old, new, bug in (
    (
        "    while True:\n        optimizer.zero_grad()\n",
        "    optimizer.zero_grad()\n    while True:\n",
        "stale-gradients",
    ),
    ("len(part) / len(items)", "size / len(items)", "token-weights"),
    ("len(part) / len(items)", "1.0", "loss-scale"),
    (
        "            for part",
        "            size = size\n            optimizer.zero_grad()\n            for part",
        "",
    ),
    (
        "                (loss_fn",
        "                optimizer.zero_grad()\n                (loss_fn",
        "discarded-gradients",
    ),
    ("except OOM", "except RuntimeError", "catches-too-much"),
    ("except OOM", "except ValueError", "not-caught"),
    ("    return size", "    return None", "wrong-type"),
    ("        size //= 2\n", "        size = 1\n", "wrong-size"),
    ("            if size == 1:\n                raise\n", "            size = max(size, 2)\n", "endless"),
    ("    optimizer.step()\n    optimizer.zero_grad()\n", "    optimizer.step()\n", "stale-gradients"),
    ("    optimizer.step()\n", "", "leftover-gradients"),
    ("    optimizer.step()\n", "    optimizer.step()\n    optimizer.step()\n", "irregular-window"),
):
    if bug:
        wrong("survive", bug)(edited(old, new))
    else:
        right("survive")(edited(old, new))

wrong("survive", "kept-activations")(
    edited("        except OOM:\n", "        except OOM as error:\n            kept = error\n")
)
wrong("survive", "discarded-gradients")(lambda *a: a[3].step())


@wrong("survive", "not-attempted")
def stub(model, items, loss_fn, optimizer, size):
    for _ in items.split(size):
        ...


@outcomes("survive")
def outcomes_of_survive(answer):
    """How much each sample counts in each step, how large the micro-batches were, and what is returned."""
    for samples, size, fits, error in (
        (12, 12, 3, OOM),
        (9, 4, 4, OOM),
        (5, 3, 1, OOM),
        (3, 2, 0, OOM),
        (4, 4, 1, OSError),
    ):
        yield lambda case=(samples, size, fits, error): trained(answer, *case)


def trained(answer, samples, size, fits, error):
    tally, found, attempts = Tally(samples).double(), [], []
    optimizer = torch.optim.SGD(tally.parameters(), lr=1.0)
    optimizer.register_step_post_hook(lambda *_: found.extend(tally.weight.grad.tolist()))

    def loss_fn(model, part):
        attempts.append(float(len(part)))
        if len(attempts) > 100:
            raise RecursionError("it never ends")
        if len(part) > fits:
            raise error
        return model(part).mean()

    try:
        worked = float(answer(tally, torch.arange(samples), loss_fn, optimizer, size))
    except (OOM, OSError) as raised:
        worked = -1.0 if isinstance(raised, error) else -2.0
    return [*found, worked, *attempts, 0.0 if tally.weight.grad is None else float(tally.weight.grad.norm())]
