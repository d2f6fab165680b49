"""Answers to "compare_batches", at equal samples, each batch with a learning rate of its own."""

from answers import edited, right, wrong

RESULT = "best, losses[best]"
IN_THE_GRID = ("if best == min(losses):", "if False:"), ("elif best == max(losses):", "elif False:")
right("compare_batches")(edited("compare_batches", (RESULT, "[best, torch.tensor(losses[best])]")))

for bug, says, *changes in (
    ("equal-updates", "read", ("samples // batch", "samples // batches[0]"), *IN_THE_GRID),
    ("wrong-value", "0.0078125, 2.65]", *IN_THE_GRID),
    ("wrong-value", "-inf]", ('float("inf")', '-float("inf")')),
    ("wrong-value", "", ("best = min(losses, key", "best = max(losses, key"), *IN_THE_GRID),
    ("wrong-type", "got 0.0009765625", (RESULT, "best")),
    ("raises", "KeyError: 64", ("in batches:", "in batches[:1]:")),
):
    wrong("compare_batches", bug, says)(edited("compare_batches", *changes))
