"""Answers to "train", a loop with one update per batch."""

import torch

from answers import edited, right, wrong


@right("train", "first_loop")
def train(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()


@right("train", "first_loop")
def zeroes_after_the_step(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@right("train", "first_loop")
def zeroes_between_forward_and_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss = loss_fn(model, batch)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        optimizer.step()


@right("train", "first_loop")
def steps_with_a_closure(model, batches, loss_fn, optimizer):
    for batch in batches:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


@right("train", "first_loop")
def zeroes_in_a_hook(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    hook = optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
    hook.remove()


def in_both(bug, *sources, says=""):
    """The decorated function is wrong in each of the two exercises."""

    def keep(answer):
        wrong("first_loop", bug, says=says)(answer)
        return wrong("train", bug, *sources, says=says)(answer)

    return keep


FOR = "    for batch in batches:\n"
ZERO = "optimizer.zero_grad()"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
EACH = "        for p in model.parameters():"
BEFORE_THE_LOOP = (FOR, f"    {ZERO}\n{FOR}")

never_zeroes = edited(train, (ZERO, "pass"))
zeroes_between_backward_and_step = edited(train, (ZERO, "pass"), (STEP, f"{ZERO}; {STEP}"))
has_no_step = edited(train, (STEP, "pass"))
steps_once_per_epoch = edited(train, (ZERO, "pass"), ("        optimizer.step()", "    optimizer.step()"))

in_both("stale-gradients", "stackoverflow-60335387", "wenet-e2e/wekws#72", "meta-pytorch/torchforge!71")(never_zeroes)
wrong("train", "stale-gradients", "karpathy/llm.c!548")(edited(train, (ZERO, "pass"), (STEP, f"{STEP}; {ZERO}")))
in_both("discarded-gradients", "sacmehta/EdgeNets#14", "gaozhihan/PreDiff!33")(zeroes_between_backward_and_step)
in_both("irregular-window")(steps_once_per_epoch)
in_both("leftover-gradients", "huggingface/transformers#2995")(has_no_step)

for bug, *changes in (
    ("empty-step", (STEP, "pass"), (ZERO, f"{STEP}; {ZERO}")),
    ("held-graphs", (BACKWARD, "loss.backward(retain_graph=True)")),
    ("loss-scale", (BACKWARD, "(loss / 4).backward()")),
    ("low-precision", (BACKWARD, f"{BACKWARD}\n{EACH} p.grad = p.grad.half().to(p.dtype)")),
    ("not-reset", (STEP, f"if batch is batches[0]: {STEP}")),
    ("not-attempted", (BACKWARD, "print(loss.item())"), (STEP, "pass")),
    ("raises", ("loss = loss_fn", "with torch.no_grad(): loss = loss_fn")),
    ("wrong-value", (STEP, f"{STEP}; optimizer.state.clear()")),
):
    in_both(bug)(edited(train, *changes))


def popped(batches):
    while batches:
        yield batches.pop(0)


def emptied(batches):
    yield from list(batches)
    batches.clear()


for bug, others, says in (
    ("wrong-batches", "batches[::-1]", ""),
    ("changed-input", "popped(batches)", ""),
):
    in_both(bug, says=says)(edited(train, ("in batches", f"in {others}")))


@right("train", "first_loop")
def reads_an_iterator(model, batches, loss_fn, optimizer):
    waiting = iter(batches)
    while (batch := next(waiting, None)) is not None:
        optimizer.zero_grad(set_to_none=True)
        loss_fn(model, batch).mean().backward()
        optimizer.step()


@right("train", "first_loop")
def updates_in_a_helper(model, batches, loss_fn, optimizer):
    if not batches:
        return []

    def update(batch) -> float:
        optimizer.zero_grad(set_to_none=False)
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return [update(batch) for batch in batches]


@right("train", "first_loop")
def asks_for_gradients(model, batches, loss_fn, optimizer):
    parameters = list(model.parameters())
    for batch in batches:
        for p, grad in zip(parameters, torch.autograd.grad(loss_fn(model, batch), parameters), strict=True):
            p.grad = grad
        optimizer.step()


@right("train", "first_loop")
def fills_with_zeros(model, batches, loss_fn, optimizer):
    for _, batch in enumerate(batches):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        loss_fn(model, batch).backward()
        optimizer.step()
