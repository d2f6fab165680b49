"""Answers to "accumulate", over windows that may be short, and to "accumulate_equal"."""

from answers import edited, right, wrong
from solutions import solution

BOTH = "accumulate", "accumulate_equal"
right("accumulate_equal")(solution("accumulate"))


@right(*BOTH)
def accumulate_by_modulo(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    batches = list(batches)
    for i, batch in enumerate(batches):
        start = i - i % n
        total = sum(len(b) for b in batches[start : start + n])
        (loss_fn(model, batch) * len(batch) / total).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@right(*BOTH)
def accumulate_sums_and_divide_the_gradient(model, batches, loss_fn, optimizer, n):
    batches = list(batches)
    for start in range(0, len(batches), n):
        optimizer.zero_grad()
        seen = 0
        for batch in batches[start : start + n]:
            seen += len(batch)
            (loss_fn(model, batch) * len(batch)).backward()
        for p in model.parameters():
            p.grad /= seen
        optimizer.step()


wrong("accumulate", "leftover-gradients")(solution("accumulate_equal"))
wrong("accumulate", "loss-scale", "0.5 times")(edited("accumulate", ("len(window)", "n")))
wrong("accumulate", "missing-backward")(
    edited("accumulate", ("in_windows(batches, n)", "[w[-1:] for w in in_windows(batches, n)]"))
)


@wrong("accumulate", "raises", "has no len()")
def accumulate_until_the_last(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / min(n, len(batches) - i // n * n)).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


wrong("accumulate_equal", "missing-backward")(
    edited("accumulate_equal", ("loss.backward()", "if number % n == 0: loss.backward()"))
)
wrong("accumulate_equal", "missing-backward", "the loop ends before batches [3, 4] or skips them")(
    edited("accumulate_equal", ("            optimizer.zero_grad()\n", "            return\n"))
)
