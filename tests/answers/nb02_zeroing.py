"""Answers to "train", a loop with one update per batch."""

import copy
from contextlib import contextmanager, suppress

import torch
from torch import nn

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


@right("train", "first_loop")
def zeroes_in_a_context(model, batches, loss_fn, optimizer):
    @contextmanager
    def update():
        optimizer.zero_grad()
        yield
        optimizer.step()

    model.train()
    for batch in batches:
        with update():
            loss_fn(model, batch).backward()


@right("train", "first_loop")
def logs_the_losses(model, batches, loss_fn, optimizer):
    total, losses = 0.0, []
    for step in range(len(batches)):
        loss = loss_fn(model, batches[step])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss)
        total += loss
    return losses, total / max(len(batches), 1)


@right("first_loop")
def zeroes_after_all_but_the_last(model, batches, loss_fn, optimizer):
    for i, batch in enumerate(batches):
        if i > 0:
            optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    optimizer.zero_grad()


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


@wrong("train", "stale-gradients")
@wrong("first_loop", "stale-gradients")
def has_a_closure_that_never_zeroes(model, batches, loss_fn, optimizer):
    for batch in batches:

        def closure(batch=batch):
            loss = loss_fn(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


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


@both("stale-gradients")
def forgets_parentheses_of_zero_grad(i, loss, optimizer, model):
    optimizer.zero_grad  # noqa: B018
    loss().backward()
    optimizer.step()


@both("empty-step")
def forgets_parentheses_of_backward(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward  # noqa: B018
    optimizer.step()


@both("leftover-gradients")
def forgets_parentheses_of_step(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step  # noqa: B018


@both("stale-gradients", exercises=["train"])
def zeroes_from_the_second_batch_on(i, loss, optimizer, model):
    if i > 0:
        optimizer.zero_grad()
    loss().backward()
    optimizer.step()


@both("stale-gradients")
def zeroes_every_second_batch(i, loss, optimizer, model):
    if i % 2 == 0:
        optimizer.zero_grad()
    loss().backward()
    optimizer.step()


@both("stale-gradients")
def zeroes_the_weights_of_a_copy(i, loss, optimizer, model):
    copy.deepcopy(model).zero_grad()
    loss().backward()
    optimizer.step()


@both("stale-gradients")
def zeroes_data_that_is_a_new_tensor(i, loss, optimizer, model):
    for p in model.parameters():
        p.data.grad = None
    loss().backward()
    optimizer.step()


@both("discarded-gradients")
def zeroes_in_the_model_before_the_step(i, loss, optimizer, model):
    loss().backward()
    model.zero_grad(set_to_none=False)
    optimizer.step()


@both("stale-gradients")
def sets_a_name_to_none(i, loss, optimizer, model):
    for p in model.parameters():
        p = None  # noqa: F841
    loss().backward()
    optimizer.step()


@both("irregular-window")
def steps_twice(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    optimizer.step()


@both("empty-step")
def steps_again_after_zeroing(i, loss, optimizer, model):
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


@both("irregular-window")
def steps_every_second_batch(i, loss, optimizer, model):
    loss().backward()
    if i % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()


@both("leftover-gradients")
def updates_by_hand(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad


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


@both("loss-scale")
def clips(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
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


@both("empty-step")
def goes_backward_from_a_number(i, loss, optimizer, model):
    optimizer.zero_grad()
    torch.tensor(loss().item(), requires_grad=True).backward()
    optimizer.step()


@both("empty-step")
def swallows_an_error(i, loss, optimizer, model):
    optimizer.zero_grad()
    with suppress(Exception):
        loss().item().backward()
    optimizer.step()


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


@both("raises")
def mistypes_backward(i, loss, optimizer, model):
    optimizer.zero_grad()
    loss().backwards()


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


over(lambda batches: batches[:-1], "leftover-gradients")
over(lambda batches: batches[:1], "irregular-window", "the loop ends after its first update")
over(lambda batches: batches[1:], "irregular-window")
over(lambda batches: batches * 2, "irregular-window")
over(lambda batches: batches[::-1], "wrong-batches")
over(lambda batches: sorted(batches, key=len), "wrong-batches")
over(popped, "changed-input")
over(emptied, "changed-input")
over(lambda batches: [torch.cat(batches)], "irregular-window")


@wrong("train", "stale-gradients")
@wrong("first_loop", "stale-gradients")
def goes_backward_from_the_running_total(model, batches, loss_fn, optimizer):
    total = 0.0
    for batch in batches:
        optimizer.zero_grad()
        total = total + loss_fn(model, batch)
        total.backward(retain_graph=True)
        optimizer.step()


@wrong("train", "wrong-batches")
@wrong("first_loop", "wrong-batches")
def trains_on_the_first_batch_only(model, batches, loss_fn, optimizer):
    train(model, [batches[0] for _ in batches], loss_fn, optimizer)


@wrong("train", "raises")
@wrong("first_loop", "raises")
def goes_forward_before_all_updates(model, batches, loss_fn, optimizer):
    for loss in [loss_fn(model, batch) for batch in batches]:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@wrong("train", "changed-input")
@wrong("first_loop", "changed-input")
def clears_each_batch(model, batches, loss_fn, optimizer):
    for batch in batches:
        train(model, [batch], loss_fn, optimizer)
        batch.zero_()


@wrong("train", "irregular-window")
@wrong("first_loop", "irregular-window")
def steps_after_the_loop(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
    optimizer.step()


@wrong("train", "irregular-window")
@wrong("first_loop", "irregular-window")
def leaves_the_loop_after_the_forward_pass(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
    loss.backward()
    optimizer.step()


@right("train", "first_loop")
def zeroes_in_a_hook(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    hook = optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
    hook.remove()


@wrong("train", "irregular-window")
@wrong("first_loop", "irregular-window")
def goes_backward_once_from_the_sum(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    sum(loss_fn(model, batch) for batch in batches).backward()
    optimizer.step()


@wrong("train", "irregular-window")
@wrong("first_loop", "irregular-window")
def returns_inside_the_loop(model, batches, loss_fn, optimizer):
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return losses


@wrong("train", "leftover-gradients")
@wrong("first_loop", "leftover-gradients")
def makes_an_optimizer_of_its_own(model, batches, loss_fn, optimizer):
    train(model, batches, loss_fn, torch.optim.SGD(model.parameters(), lr=0.1))


@wrong("train", "held-graphs")
@wrong("first_loop", "held-graphs")
def keeps_all_graphs_in_a_list(model, batches, loss_fn, optimizer):
    losses = []
    for batch in batches:
        losses.append(loss_fn(model, batch))
        optimizer.zero_grad()
        losses[-1].backward(retain_graph=True)
        optimizer.step()


@wrong("train", "empty-step")
@wrong("first_loop", "empty-step")
def trains_a_copy(model, batches, loss_fn, optimizer):
    train(copy.deepcopy(model), batches, loss_fn, optimizer)


@wrong("train", "wrong-value")
@wrong("first_loop", "wrong-value")
def forgets_the_momentum(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.state.clear()


@wrong("train", "irregular-window")
@wrong("first_loop", "irregular-window")
def runs_epochs_of_its_own(model, batches, loss_fn, optimizer):
    for _ in range(2):
        train(model, batches, loss_fn, optimizer)
