"""Answers to "accumulate_equal", accumulation over full windows of equal micro-batches."""

from answers import RIGHT, nb05_windows, right  # noqa: F401

for _answer in RIGHT["accumulate"]:
    right("accumulate_equal")(_answer)


@right("accumulate_equal")
def accumulate_equal(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if number % n == 0:
            optimizer.step()
            optimizer.zero_grad()


SHARE = " / n)"
