"""Answers to "accumulate_tokens", over padded sequences whose valid targets count the same."""

from collections import deque
from functools import partial

import torch
from torch.nn.functional import cross_entropy

from answers import edited, right
from answers import wrong as _wrong
from course_utils import windows
from solutions import solution

accumulate_tokens = solution("accumulate_tokens")
wrong = partial(_wrong, "accumulate_tokens")

SKIP = "        window = [batch for batch in window if (batch[1] != -100).any()]\n"
SUM = 'reduction="sum") / total'
OWN = "(targets != -100).sum()"
NUMELS = "sum(each.numel() for _, each in window)"
BACKWARD = "loss.backward()"
STEP = "        optimizer.step()\n"
ZERO = "optimizer.zero_grad()"
LOGGED = "window_loss += loss.detach()"
ALWAYS = (SKIP, ""), ("if not window", "if False")

right("accumulate_tokens")(edited("accumulate_tokens", (SUM, f'reduction="mean") * {OWN} / total')))


@right("accumulate_tokens")
def divides_the_gradient_at_the_end(model, batches, optimizer, n):
    waiting = deque(batches)
    while waiting:
        optimizer.zero_grad(set_to_none=False)
        seen, logged = 0, 0.0
        for _ in range(min(n, len(waiting))):
            inputs, targets = waiting.popleft()
            for row, answer in zip(inputs, targets, strict=True):  # word by word, without any padding
                kept = answer != -100
                if kept.any():
                    loss = cross_entropy(model(row[kept]), answer[kept], reduction="sum")
                    loss.backward()
                    seen, logged = seen + int(kept.sum()), logged + loss.item()
        if seen:
            for p in model.parameters():
                p.grad /= seen
            optimizer.step()
            yield logged / seen


for bug, says, *changes in (
    # in huggingface/trl#2175
    ("token-weights", "count [4.25, 0.472222, 2.125, 0.85] times", (SUM, 'reduction="mean") / len(window)')),
    ("loss-scale", "", (SUM, f"{SUM} * len(window)")),
    ("padding", "update 1 is 0.692308 times", ("(targets != -100).sum() for _", "targets.numel() for _")),
    ("padding", "masked targets", (SUM, f'reduction="mean") * targets.numel() / {NUMELS}')),
    ("wrong-loss", "", *ALWAYS, (SUM, f'reduction="mean") * {OWN} / total')),
    ("empty-step", "", *ALWAYS, ("total = sum(", "total = 1e-9 + sum(")),
    ("stale-gradients", "", (ZERO, "pass")),
    ("discarded-gradients", "", (BACKWARD, f"{ZERO}; {BACKWARD}")),
    ("leftover-gradients", "", (STEP, f"        if len(window) < n: break\n{STEP}")),
    ("missing-backward", "", (BACKWARD, f"if inputs is window[-1][0]: {BACKWARD}")),
    ("held-graphs", "", (BACKWARD, "loss.backward(retain_graph=True)")),
    ("wrong-loss", "", (LOGGED, "window_loss = loss.detach()")),
    ("irregular-window", "", ("windows(batches, n)", "[batches[:1], *windows(batches[1:], n)]")),
    ("irregular-window", "", ("windows(batches, n)", "windows(batches[::-1], n)")),
):
    wrong(bug, says=says)(edited("accumulate_tokens", *changes))

wrong("wrong-type")(lambda *a: sum(accumulate_tokens(*a)))
wrong("wrong-loss")(lambda *a: [*accumulate_tokens(*a), 0.0])
wrong("changed-input")(lambda *a: (accumulate_tokens(*a), [t.clamp_(min=0) for _, t in a[1]])[0])


@wrong("wrong-loss")
def logs_after_the_update(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        if accumulate_tokens(model, window, optimizer, n):
            with torch.no_grad():
                flat = [(model(x).flatten(0, 1), targets.flatten()) for x, targets in window]
            losses.append(cross_entropy(*map(torch.cat, zip(*flat, strict=True))).item())
    return losses
