"""Answers to "first_loop" and "train", loops with one update per batch."""

import torch

from answers import edited, right, wrong
from solutions import solution

BOTH = "first_loop", "train"
FOR = "for batch in batches:\n"
BACKWARD = "        loss.backward()\n"
STEP = "        optimizer.step()\n"
ZERO = "        optimizer.zero_grad()\n"
EACH = "        for p in model.parameters():"

# Zeroes at the top; before the loop and after each step; between forward and backward pass
right("first_loop")(solution("train"))
right(*BOTH)(edited("train", (ZERO, ""), (FOR, f"optimizer.zero_grad()\n    {FOR}"), (STEP, STEP + ZERO)))
right(*BOTH)(edited("train", (ZERO, ""), (BACKWARD, f"{EACH} p.grad = None\n{BACKWARD}")))


@right(*BOTH)
def steps_with_a_closure(model, batches, loss_fn, optimizer):
    for batch in batches:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


@right(*BOTH)
def asks_for_gradients(model, batches, loss_fn, optimizer):
    parameters = list(model.parameters())
    for batch in batches:
        for p, grad in zip(parameters, torch.autograd.grad(loss_fn(model, batch), parameters), strict=True):
            p.grad = grad
        optimizer.step()


def popped(batches):
    while batches:
        yield batches.pop(0)


popping = edited("train", ("in batches", "in popped(batches)"))
popping.__globals__["popped"] = popped
wrong("train", "changed-input")(popping)

for bug, *changes in (
    ("stale-gradients", (ZERO, "")),
    ("discarded-gradients", (ZERO, ""), (STEP, ZERO + STEP)),
    ("irregular-window", (ZERO, ""), (STEP, "    optimizer.step()\n")),
    ("leftover-gradients", (STEP, ""), (ZERO, "")),
    ("empty-step", (STEP, ""), (ZERO, ""), (FOR, FOR + STEP + ZERO)),
    ("held-graphs", ("backward()", "backward(retain_graph=True)")),
    ("loss-scale", ("loss.backward()", "(loss / 4).backward()")),
    ("low-precision", (BACKWARD, f"{BACKWARD}{EACH} p.grad = p.grad.half().to(p.dtype)\n")),
    ("not-attempted", (BACKWARD, ""), (STEP, "")),
    ("raises", ("loss = loss_fn", "with torch.no_grad(): loss = loss_fn")),
    ("wrong-value", (STEP, f"{STEP}        optimizer.state.clear()\n")),
    ("irregular-window", ("in batches", "in batches[::-1]")),
):
    for exercise in BOTH:
        wrong(exercise, bug)(edited(exercise, *changes))

# The loop of an update that steps first: update 1 finds nothing, whatever is zeroed later.
wrong("train", "empty-step", "update 1 holds batches [] instead of [1]: no backward pass")(
    edited("train", (STEP, ""), (FOR, f"{FOR}{ZERO}{STEP}"))
)
for call in ("optimizer.step", "zero_grad", "backward"):
    wrong("train", "not-called", "no parentheses")(edited("train", (f"{call}()", call)))

for bug, says, numbers in (
    ("nothing-clears", "fbs = 100: there is no z", {"fbs": 100}),
    ("forgets-z", "bszf = 11 and fbszs = 11: a z clears", {"bszf": 11, "fbszs": 11}),
    ("counts-rounds", "fbszs = 100 and fbzfbs = 100: ", {"fbszs": 100, "fbzfbs": 100}),
    ("backward-before-forward", "bszf = 100: ", {"bszf": 100}),
    ("none-is-not-zero", "fbzs = 0: ", {"fbzs": 0}),
    # Four errors, each with its reason.
    (
        "nothing-clears",
        "clears; bszf = 1: that's what the second step reads; fbszs = 2 and fbzs = 4: not right yet.",
        {"fbs": 100, "bszf": 1, "fbszs": 2, "fbzs": 4},
    ),
):
    wrong("third_step", bug, says)(solution("third_step") | numbers)
