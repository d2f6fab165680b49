"""Answers to "accumulate_equal", accumulation over full windows of equal micro-batches."""

from answers import RIGHT, edited, right, wrong
from answers import nb05_windows as windows_of

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
for bug, source, answer in (
    ("loss-scale", "karpathy/nanoGPT#206", edited(accumulate_equal, (SHARE, ")"))),
    ("stale-gradients", "karpathy/llm.c!548", windows_of.without_a_tail),
    ("discarded-gradients", "HorizonRobotics/alf!1788", windows_of.zeroes_at_the_top),
    (
        "irregular-window",
        "Lightning-Fabric-docs-and-no_backward_sync-docstring",
        windows_of.fabric_steps_where_i_modulo_n_is_0,
    ),
):
    wrong("accumulate_equal", bug, source)(answer)

wrong("accumulate_equal", "low-precision")(edited(accumulate_equal, (SHARE, " * round(1 / n, 2))")))
wrong("accumulate_equal", "low-precision")(edited(accumulate_equal, (SHARE, " * (torch.tensor(1.0) / n).bfloat16())")))
wrong("accumulate_equal", "not-attempted")(lambda model, batches, *_: [None for batch in batches])
wrong("accumulate_equal", "leftover-gradients")(
    lambda model, batches, loss_fn, *_: [loss_fn(model, batch).backward() for batch in batches] and None
)
wrong("accumulate_equal", "empty-step")(
    lambda model, batches, loss_fn, optimizer, n: [optimizer.step() for _ in range(len(batches) // n)]
)
wrong("accumulate_equal", "raises")(lambda model, batches, loss_fn, optimizer, n: loss_fn(batches[0], model))
