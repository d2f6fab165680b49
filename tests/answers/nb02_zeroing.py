"""Answers to "train", a loop with one update per batch."""

import torch

from answers import right, wrong


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
def counts_with_while(model, batches, loss_fn, optimizer):
    i = 0
    while i < len(batches):
        model.zero_grad()
        loss_fn(model, batches[i]).backward()
        optimizer.step()
        i += 1


@wrong("train", "stale-gradients", "stackoverflow-60335387", "wenet-e2e/wekws#72", "meta-pytorch/torchforge!71")
@wrong("first_loop", "stale-gradients")
def never_zeroes(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()


@wrong("train", "stale-gradients", "pytorch/pytorch#47175")
@wrong("first_loop", "stale-gradients")
def zeroes_once_per_epoch(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()


@wrong("train", "stale-gradients", "karpathy/llm.c!548")
def zeroes_only_after_the_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@wrong("train", "discarded-gradients", "sacmehta/EdgeNets#14", "gaozhihan/PreDiff!33")
@wrong("first_loop", "discarded-gradients")
def zeroes_between_backward_and_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.zero_grad()
        optimizer.step()


@wrong("train", "empty-step")
@wrong("first_loop", "empty-step")
def steps_before_the_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.step()
        optimizer.zero_grad()
        loss_fn(model, batch).backward()


@wrong("train", "empty-step")
@wrong("first_loop", "empty-step")
def has_no_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch)
        optimizer.step()


@wrong("train", "irregular-window")
@wrong("first_loop", "irregular-window")
def steps_once_per_epoch(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss_fn(model, batch).backward()
    optimizer.step()


@wrong("train", "leftover-gradients", "huggingface/transformers#2995")
@wrong("first_loop", "leftover-gradients")
def has_no_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()


@wrong("train", "held-graphs")
@wrong("first_loop", "held-graphs")
def keeps_the_graph(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward(retain_graph=True)
        optimizer.step()


def both(bug, exercises=("train", "first_loop")):
    """A loop that does for every batch what the decorated function does is wrong, in these exercises."""

    def keep(update):
        def loop(model, batches, loss_fn, optimizer):
            for i, batch in enumerate(batches):
                update(i, lambda: loss_fn(model, batch), optimizer, model)  # noqa: B023

        loop.__name__ = update.__name__
        for exercise in exercises:
            wrong(exercise, bug)(loop)
        return loop

    return keep


@both("leftover-gradients")
def forgets_parentheses_of_step(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step  # noqa: B018


@both("discarded-gradients")
def zeroes_in_the_model_before_the_step(i, loss, optimizer, model):
    loss().backward()
    model.zero_grad(set_to_none=False)
    optimizer.step()


@both("loss-scale")
def divides_the_loss(i, loss, optimizer, model):
    optimizer.zero_grad()
    (loss() / 4).backward()
    optimizer.step()


@both("loss-scale")
def goes_backward_twice(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    loss().backward()
    optimizer.step()


@both("low-precision")
def keeps_half_of_the_digits(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    for p in model.parameters():
        p.grad = p.grad.half().to(p.dtype)
    optimizer.step()


@both("low-precision")
def rounds_the_gradients(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    for p in model.parameters():
        p.grad = p.grad.round(decimals=3)
    optimizer.step()


@both("not-reset")
def steps_for_the_first_batch_only(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    if i == 0:
        optimizer.step()


@both("not-attempted")
def goes_forward_only(i, loss, optimizer, model):
    optimizer.zero_grad()
    print(loss().item())


@both("raises")
def forwards_without_gradients(i, loss, optimizer, model):
    optimizer.zero_grad()
    with torch.no_grad():
        out = loss()
    out.backward()
    optimizer.step()


@both("raises")
def zeroes_what_may_be_none(i, loss, optimizer, model):
    for p in model.parameters():
        p.grad.zero_()
    loss().backward()
    optimizer.step()


def over(change, bug, says=""):
    """A correct loop over other batches than it was given."""

    def loop(model, batches, loss_fn, optimizer):
        train(model, change(batches), loss_fn, optimizer)

    for exercise in ("train", "first_loop"):
        wrong(exercise, bug, says=says)(loop)


def popped(batches):
    while batches:
        yield batches.pop(0)


def emptied(batches):
    yield from list(batches)
    batches.clear()


over(lambda batches: batches[:1], "irregular-window", "the loop ends after its first update")
over(lambda batches: batches[::-1], "wrong-batches")
over(lambda batches: sorted(batches, key=len), "wrong-batches")
over(popped, "changed-input")
over(emptied, "changed-input")


@wrong("train", "held-graphs")
@wrong("first_loop", "held-graphs")
def keeps_all_graphs_in_a_list(model, batches, loss_fn, optimizer):
    losses = []
    for batch in batches:
        losses.append(loss_fn(model, batch))
        optimizer.zero_grad()
        losses[-1].backward(retain_graph=True)
        optimizer.step()


@wrong("train", "wrong-value")
@wrong("first_loop", "wrong-value")
def forgets_the_momentum(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.state.clear()


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
