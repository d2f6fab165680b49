"""Answers to "accumulate", over windows that may be short, of micro-batches of any size, and to "accumulate_equal"."""

from answers import edited, right, wrong
from solutions import solution

BOTH = "accumulate", "accumulate_equal"
right("accumulate_equal")(solution("accumulate"))


@right(*BOTH)
def accumulate_by_modulo(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        start = i - i % n
        total = sum(len(b) for b in batches[start : start + n])
        (loss_fn(model, batch) * len(batch) / total).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@right(*BOTH)
def accumulate_sums_and_divide_the_gradient(model, batches, loss_fn, optimizer, n):
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
wrong("accumulate", "token-weights")(edited("accumulate", ("len(batch) / samples", "len(window[0]) / samples")))
wrong("accumulate", "missing-backward")(
    edited("accumulate", ("windows(batches, n)", "[w[-1:] for w in windows(batches, n)]"))
)
wrong("accumulate_equal", "missing-backward")(
    edited("accumulate_equal", ("loss.backward()", "if number % n == 0: loss.backward()"))
)
