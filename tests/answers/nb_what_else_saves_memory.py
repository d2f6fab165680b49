"""Answers to "survive": a window that survives running out of memory."""

import torch

from answers import edited, right, wrong
from course_utils import windows

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
def with_gradients_as_values(model, items, loss_fn, optimizer, size):
    """Nothing is in .grad until the window is whole."""
    params, sums = list(model.parameters()), None
    while sums is None:
        try:
            sums = [torch.zeros_like(p) for p in params]
            for part in items.split(size):
                grads = torch.autograd.grad(loss_fn(model, part), params)
                sums = [held + grad * len(part) for held, grad in zip(sums, grads, strict=True)]
        except OOM:
            if size == 1:
                raise
            sums = None
        size = size if sums else size // 2
    for p, held in zip(params, sums, strict=True):
        p.grad = held / len(items)
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


@right("survive")
def by_the_words_of_the_error(model, items, loss_fn, optimizer, size):
    """As written before PyTorch had a class for it."""
    while True:
        optimizer.zero_grad(set_to_none=True)
        too_large = False
        try:
            for start in range(0, len(items), size):
                part = items[start : start + size]
                loss = loss_fn(model, part) * part.shape[0] / items.shape[0]
                loss.backward()
        except RuntimeError as error:
            if "out of memory" not in str(error) or size == 1:
                raise
            too_large = True
        if not too_large:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return size
        torch.cuda.empty_cache()
        size = size // 2


ZERO = "        optimizer.zero_grad()\n"
BACKWARD = "                (loss_fn(model, part) * (len(part) / len(items))).backward()\n"
SHARE = "len(part) / len(items)"
GUARD = "            if size == 1:\n                raise\n"
HALVE = "        size //= 2\n"
STEP = "    optimizer.step()\n"
LAST_ZERO = "    optimizer.zero_grad()\n    return"
EACH = "loss_fn(model, p) * len(p) / len(items)"
for changes in (
    [("(loss_fn", "loss = (loss_fn"), (".backward()", "; loss.backward(retain_graph=True)")],
    [("items.split(size)", "[items]"), ("loss_fn(model, part)", f"sum({EACH} for p in items.split(size))")],
):
    wrong("survive", "held-graphs")(edited(halves_until_it_fits, *changes))
for bug, *change in (
    # What is caught, and what comes out.
    ("catches-too-much", "except OOM", "except RuntimeError"),
    ("catches-too-much", "except OOM", "except Exception"),
    ("not-caught", "except OOM", "except ValueError"),
    ("not-caught", "except OOM", "except MemoryError"),
    ("swallowed-error", "                raise\n", "                break\n"),
    # Sizes.
    ("wrong-size", HALVE, "        size = 1\n"),
    ("wrong-size", HALVE, "        size -= 1\n"),
    ("raises", HALVE, "        size //= 4\n"),
    ("raises", HALVE, "        size /= 2\n"),
    ("endless", GUARD, "            size = max(size, 2)\n"),
    ("wrong-type", "return size", "return None"),
    ("wrong-type", "return size", "return float(size)"),
    # Weights.
    ("loss-scale", SHARE, "1.0"),
    ("loss-scale", SHARE, "len(part)"),
    ("low-precision", SHARE, "round(len(part) / len(items), 3)"),
    # Steps and zeroing.
    ("stale-gradients", f"    while True:\n{ZERO}", f"{ZERO[4:]}    while True:\n"),
    ("stale-gradients", LAST_ZERO, "    return"),
    ("discarded-gradients", BACKWARD, f"        {ZERO}{BACKWARD}"),
    ("discarded-gradients", STEP, f"{ZERO[4:]}{STEP}"),
    ("leftover-gradients", STEP, ""),
    ("irregular-window", STEP, STEP * 2),
    ("irregular-window", BACKWARD, f"{BACKWARD}            {STEP}"),
    ("wrong-value", f"{ZERO}        try", "        next(model.parameters()).grad = None\n        try"),
):
    wrong("survive", bug)(edited(halves_until_it_fits, tuple(change)))


@wrong("survive", "kept-activations")
def begins_again_in_the_except(model, items, loss_fn, optimizer, size):
    optimizer.zero_grad()
    try:
        for part in items.split(size):
            (loss_fn(model, part) * (len(part) / len(items))).backward()
    except Exception:
        while size > 1:
            size //= 2
            optimizer.zero_grad()
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "endless", says="16 to begin with, 16 fit: more than 500 forward passes for one update")
def asks_500_times_whether_a_sample_fits(model, items, loss_fn, optimizer, size):
    with torch.no_grad():
        for _ in range(500):
            loss_fn(model, items[:1])
    return as_if_all_fitted(model, items, loss_fn, optimizer, size)


def raising(error):
    def answer(*window):
        try:
            return halves_until_it_fits(*window)
        except OOM:
            raise error from None

    return answer


wrong("survive", "wrong-error")(raising(ValueError("not even one item fits")))
wrong("survive", "wrong-error")(raising(RuntimeError("out of memory, even with one item")))


@wrong("survive", "not-caught")
def as_if_all_fitted(model, items, loss_fn, optimizer, size):
    optimizer.zero_grad()
    for part in items.split(size):
        (loss_fn(model, part) * (len(part) / len(items))).backward()
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "swallowed-error", says="as if all was well: the error must come out")
def gives_up_quietly(model, items, loss_fn, optimizer, size):
    while size:
        optimizer.zero_grad()
        try:
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            optimizer.step()
            break
        except OOM:
            pass
        size //= 2
    optimizer.zero_grad()
    return size


wrong("survive", "token-weights", says="samples 1 to 12 count 1, 13 to 14 count 2 times")(
    edited(halves_until_it_fits, (SHARE, "size / len(items)"))
)


@wrong("survive", "not-attempted")
def stub(model, items, loss_fn, optimizer, size):
    for _ in items.split(size):
        ...
