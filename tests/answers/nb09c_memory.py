"""Answers to "survive": a window that survives running out of memory."""

import inspect
from contextlib import suppress
from itertools import count, takewhile

import torch

from answers import right, wrong
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


@right("survive")
def in_two_functions(model, items, loss_fn, optimizer, size: int) -> int:
    def fits(size):
        model.zero_grad()
        try:
            for part in torch.split(items, size):
                loss_fn(model, part).mul(len(part)).backward()
            return True
        except torch.cuda.OutOfMemoryError:
            return False

    sizes = takewhile(bool, (size >> k for k in count()))
    worked = next(filter(fits, sizes), None)
    if worked is None:
        loss_fn(model, items[:1])
    for p in model.parameters():
        p.grad /= len(items)
    optimizer.step()
    model.zero_grad()
    return worked


@right("survive")
def with_a_closure(model, items, loss_fn, optimizer, size):
    def closure():
        nonlocal size
        while True:
            optimizer.zero_grad()
            try:
                total = 0.0
                for part in items.split(size):
                    loss = loss_fn(model, part) * len(part) / len(items)
                    loss.backward()
                    total += float(loss)
                return total
            except OOM:
                if size < 2:
                    raise
            size //= 2

    optimizer.step(closure)
    optimizer.zero_grad()
    return size


@right("survive")
def with_a_for_and_the_last_error(model, items, loss_fn, optimizer, size):
    error, weights = None, torch.ones(len(items)) / len(items)
    while size:
        for p in model.parameters():
            p.grad = None
        try:
            for part, shares in zip(items.split(size), weights.split(size), strict=True):
                (loss_fn(model, part) * shares.sum()).backward()
        except OOM as caught:
            error = caught.with_traceback(None)
            size //= 2
        else:
            optimizer.step()
            optimizer.zero_grad()
            return size
    raise error


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


@right("survive")
def keeps_the_log(model, items, loss_fn, optimizer, size):
    """The total of tensors holds no activations, since backward() has freed them."""
    if len(items) == 0:
        return size
    done = False
    while not done:
        total, done = 0.0, True
        optimizer.zero_grad()
        for part in items.split(size):
            try:
                loss = loss_fn(model, part) * (len(part) / len(items))
                loss.backward()
                total += loss.detach()
            except OOM:
                done = False
            if not done:
                break
        if not done and size == 1:
            loss_fn(model, items[:1])
        size = size if done else size // 2
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

LOOP = "            for part in items.split(size):\n"
BACKWARD = "                (loss_fn(model, part) * (len(part) / len(items))).backward()\n"
GUARD = "            if size == 1:\n                raise\n"
HALVE = "        size //= 2\n"
STEP = "    optimizer.step()\n    optimizer.zero_grad()\n"
for old, new, bug in (
    # Memory.
    (BACKWARD, BACKWARD.replace("backward()", "backward(retain_graph=True)"), ""),
    (
        BACKWARD,
        BACKWARD.replace("(loss_fn", "loss = (loss_fn")
        .replace(".b", "\n                loss.b")
        .replace("()", "(retain_graph=True)"),
        "held-graphs",
    ),
    (
        LOOP + BACKWARD,
        "            sum(loss_fn(model, p) * len(p) for p in items.split(size)).div(len(items)).backward()\n",
        "held-graphs",
    ),
    (
        LOOP + BACKWARD,
        "            torch.stack([loss_fn(model, p) * len(p) for p in items.split(size)]).sum().div(16).backward()\n",
        "held-graphs",
    ),
    (
        LOOP + BACKWARD,
        "            for loss in [loss_fn(model, p) * len(p) / len(items) for p in items.split(size)]:\n"
        "                loss.backward()\n",
        "held-graphs",
    ),
    # What is caught, and what comes out.
    ("except OOM", "except Exception", "catches-too-much"),
    ("except OOM", "except (OOM, RuntimeError)", "catches-too-much"),
    ("        except OOM", "        except", "catches-too-much"),
    ("except OOM", "except MemoryError", "not-caught"),
    (GUARD, "            if size == 1:\n                break\n", "swallowed-error"),
    (GUARD, "            if size == 1:\n                return 0\n", "swallowed-error"),
    (GUARD, "            if size == 1:\n                return None\n", "swallowed-error"),
    (GUARD, "            pass\n", "endless"),
    (GUARD + HALVE, "            pass\n", "endless"),
    (GUARD + HALVE, "            continue\n", "endless"),
    (GUARD, "            if size == 2:\n                raise\n", "not-caught"),
    # Sizes.
    (HALVE, "        size -= 1\n", "wrong-size"),
    (HALVE, "        size //= 4\n", "raises"),
    (HALVE, "        size = (size + 1) // 2\n", "wrong-size"),
    (HALVE, "        size /= 2\n", "raises"),
    ("    return size", "    return len(part)", "wrong-size"),
    ("    return size", "    return len(items) // size", "wrong-size"),
    ("    return size", "    return size // 2", "wrong-size"),
    ("    return size", "    return float(size)", "wrong-type"),
    ("    return size", "    return str(size)", "wrong-type"),
    ("    return size", "    return size, len(items)", "wrong-type"),
    ("    return size", "    return True", "wrong-type"),
    # Weights.
    ("(len(part) / len(items))", "(1 / len(items.split(size)))", "token-weights"),
    ("(len(part) / len(items))", "(size / len(items))", "token-weights"),
    ("len(part) / len(items)", "len(part)", "loss-scale"),
    ("len(part) / len(items)", "len(part) / size", "loss-scale"),
    ("len(part) / len(items)", "1 / len(items)", "loss-scale"),
    ("len(part) / len(items)", "round(len(part) / len(items), 3)", "low-precision"),
    # Steps and zeroing.
    (BACKWARD, BACKWARD + "                optimizer.step()\n", "irregular-window"),
    (
        BACKWARD,
        BACKWARD + "                optimizer.step()\n                optimizer.zero_grad()\n",
        "irregular-window",
    ),
    (STEP, "    optimizer.zero_grad()\n    optimizer.step()\n", "discarded-gradients"),
    (STEP, "    optimizer.zero_grad()\n", "leftover-gradients"),
    ("        optimizer.zero_grad()\n        try", "        try", "stale-gradients"),
    ("items.split(size)", "items[:-1].split(size)", "discarded-gradients"),
    (
        "        optimizer.zero_grad()\n        try",
        "        next(model.parameters()).grad = None\n        try",
        "wrong-value",
    ),
    ("items.split(size)", "items[: len(items) // size * size].split(size)", "discarded-gradients"),
):
    if bug:
        wrong("survive", bug)(edited(old, new))
    else:
        right("survive")(edited(old, new))


@wrong("survive", "discarded-gradients")
def leaves_out_what_does_not_fit(model, items, loss_fn, optimizer, size):
    optimizer.zero_grad()
    for part in items.split(size):
        with suppress(OOM):
            (loss_fn(model, part) * (len(part) / len(items))).backward()
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "discarded-gradients")
def goes_on_with_the_next_part(model, items, loss_fn, optimizer, size):
    optimizer.zero_grad()
    start = 0
    while start < len(items):
        part = items[start : start + size]
        start += size
        try:
            (loss_fn(model, part) * (len(part) / len(items))).backward()
        except OOM:
            if size == 1:
                raise
            size //= 2
    optimizer.step()
    optimizer.zero_grad()
    return size


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


@wrong("survive", "irregular-window")
def halves_the_window_with_its_update(model, items, loss_fn, optimizer, size):
    too_large = False
    try:
        for part in items.split(size):
            (loss_fn(model, part) * (len(part) / len(items))).backward()
    except OOM:
        if len(items) == 1:
            raise
        too_large = True
    if too_large:
        optimizer.zero_grad()
        halves_the_window_with_its_update(model, items[: len(items) // 2], loss_fn, optimizer, size // 2)
        return halves_the_window_with_its_update(model, items[len(items) // 2 :], loss_fn, optimizer, size // 2)
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "kept-activations")
def keeps_the_errors(model, items, loss_fn, optimizer, size):
    errors = []
    while True:
        optimizer.zero_grad()
        try:
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            break
        except OOM as error:
            errors.append(error)
            if size == 1:
                raise
        size //= 2
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "not-caught")
def probes_the_first_part_only(model, items, loss_fn, optimizer, size):
    """And finds no limit that appears in the middle of a window."""
    fits = False
    while not fits:
        with torch.no_grad():
            try:
                loss_fn(model, items[:size])
                fits = True
            except OOM:
                if size == 1:
                    raise
        size = size if fits else size // 2
    return as_if_all_fitted(model, items, loss_fn, optimizer, size)


@wrong("survive", "endless")
def never_gives_up(model, items, loss_fn, optimizer, size):
    done = False
    while not done:
        optimizer.zero_grad()
        try:
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            done = True
        except Exception:
            size = max(1, size // 2)
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "endless", says="16 to begin with, 16 fit: more than 500 forward passes for one update")
def asks_500_times_whether_a_sample_fits(model, items, loss_fn, optimizer, size):
    with torch.no_grad():
        for _ in range(500):
            loss_fn(model, items[:1])
    return as_if_all_fitted(model, items, loss_fn, optimizer, size)


@wrong("survive", "discarded-gradients")
def zeroes_and_goes_on_where_it_failed(model, items, loss_fn, optimizer, size):
    optimizer.zero_grad()
    done = 0
    while done < len(items):
        part = items[done : done + size]
        try:
            (loss_fn(model, part) * (len(part) / len(items))).backward()
            done += len(part)
        except OOM:
            if size == 1:
                raise
            size //= 2
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
    return size


@wrong("survive", "irregular-window")
def steps_after_every_attempt(model, items, loss_fn, optimizer, size):
    while True:
        optimizer.zero_grad()
        try:
            for part in items.split(size):
                (loss_fn(model, part) * (len(part) / len(items))).backward()
            break
        except OOM:
            if size == 1:
                raise
        finally:
            optimizer.step()
        size //= 2
    optimizer.zero_grad()
    return size


@wrong("survive", "wrong-error")
def raises_an_error_of_its_own(model, items, loss_fn, optimizer, size):
    while size > 0:
        try:
            return halves_until_it_fits(model, items, loss_fn, optimizer, size)
        except OOM:
            size = 0
    raise ValueError("not even one item fits")


@wrong("survive", "wrong-error")
def raises_a_runtime_error(model, items, loss_fn, optimizer, size):
    try:
        return halves_until_it_fits(model, items, loss_fn, optimizer, size)
    except OOM:
        raise RuntimeError("out of memory, even with one item") from None


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


wrong("survive", "kept-activations")(
    edited("        except OOM:\n", "        except OOM as error:\n            kept = error\n")
)
wrong("survive", "discarded-gradients")(lambda *a: a[3].step())
wrong("survive", "token-weights", says="samples 1 to 12 count 1, 13 to 14 count 2 times")(
    edited("len(part) / len(items)", "size / len(items)")
)


@wrong("survive", "not-attempted")
def stub(model, items, loss_fn, optimizer, size):
    for _ in items.split(size):
        ...
