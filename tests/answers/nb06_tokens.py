"""Answers to "weighted_loop" and "without_tokens", over padded sequences whose tokens count the same."""

from answers import edited, right, wrong
from solutions import solution

BOTH = "weighted_loop", "without_tokens"
right("weighted_loop")(solution("without_tokens"))


@right(*BOTH)
def divides_the_gradient_at_the_end(model, batches, loss_fn, optimizer, n, weight):
    for start in range(0, len(batches), n):
        optimizer.zero_grad(set_to_none=False)
        seen = 0
        for batch in batches[start : start + n]:
            if count := weight(batch):
                (loss_fn(model, batch) * count).backward()
                seen += count
        if seen:
            for p in model.parameters():
                p.grad /= seen
            optimizer.step()


MINE = "(weight(batch) / total)"
BACKWARD = "loss.backward()"
STEP = "        optimizer.step()\n"
TOTAL = "total = sum(weight(batch) for batch in window)"
ALL = "total = sum(weight(batch) for batch in batches)"
WINDOWS = "windows(batches, n)"

for bug, says, *changes in (
    # in huggingface/trl#2175
    ("token-weights", "count [4.25, 0.472222, 2.125, 0.85] times", (MINE, "(1 / len(window))")),
    ("token-weights", "", (MINE, "(batch[1].numel() / sum(targets.numel() for _, targets in window))")),
    ("loss-scale", "", (MINE, "weight(batch)")),
    ("loss-scale", "2 times", (MINE, "weight(batch) / (total / len(window))")),
    ("loss-scale", "", (TOTAL, ALL)),
    ("stale-gradients", "", ("        optimizer.zero_grad()\n", "")),
    ("discarded-gradients", "", (BACKWARD, f"optimizer.zero_grad(); {BACKWARD}")),
    ("leftover-gradients", "", (STEP, f"        if len(window) < n: break\n{STEP}")),
    ("missing-backward", "", (BACKWARD, f"if batch is window[-1]: {BACKWARD}")),
    ("held-graphs", "", (BACKWARD, "loss.backward(retain_graph=True)")),
    ("irregular-window", "", (WINDOWS, "[batches[:1], *windows(batches[1:], n)]")),
):
    wrong("weighted_loop", bug, says)(edited("weighted_loop", *changes))

wrong("without_tokens", "raises", "ZeroDivisionError")(solution("weighted_loop"))
wrong("without_tokens", "empty-step")(edited("weighted_loop", (TOTAL, f"{TOTAL} + 1e-12")))
wrong("without_tokens", "irregular-window")(
    edited("weighted_loop", (WINDOWS, "windows([batch for batch in batches if weight(batch)], n)"))
)
wrong("without_tokens", "changed-input")(
    lambda *a: (solution("without_tokens")(*a), [targets.clamp_(0) for _, targets in a[1]])
)
