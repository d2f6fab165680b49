"""Answers to "loss_factor": the factor of a sum of losses on a grid of ranks."""

from answers import edited, right, wrong


@right("loss_factor")
def by_the_world(counts, n):
    return n * counts.numel() / counts.sum()  # tensor ranks cancel


for bug, change in (
    ("tensor-ranks-count-twice", ("counts[:, :, 0].sum()", "counts.sum()")),
    ("averages-over-tensor-ranks", ("n * data * context", "n * counts.numel()")),
    ("leaves-n-out", ("n * data", "data")),
    ("leaves-context-out", ("data * context", "data")),
    ("wrong-value", ("counts[:, :, 0].sum()", "counts[0, 0, 0]")),
    ("changed-input", ("    return n", "    counts += 1\n    return n")),
):
    wrong("loss_factor", bug)(edited("loss_factor", change))
