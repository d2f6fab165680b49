"""Answers to "break_it": a loop that makes every call and discards every gradient, with a .grad at every step."""

import torch

from answers import right, wrong


@right("break_it")
def zeros_between_backward_and_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@right("break_it")
def model_zeroes_between(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        model.zero_grad(False)
        optimizer.step()


@right("break_it")
def zeroes_before_and_between(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@right("break_it")
def zeroes_each_by_hand(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        for p in model.parameters():
            p.grad.zero_()
        optimizer.step()


@right("break_it")
def new_zeros_between(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()


@wrong("break_it", "still-right")
def is_right(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()


@wrong("break_it", "still-right")
def zeroes_between_forward_and_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss = loss_fn(model, batch)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()


@wrong("break_it", "none-at-the-step")
def none_between(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.zero_grad()
        optimizer.step()


@wrong("break_it", "none-at-the-step")
def none_by_hand(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        for p in model.parameters():
            p.grad = None
        optimizer.step()


@wrong("break_it", "another-bug", says="stale-gradients")
def breaks_it_by_never_zeroing(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()


@wrong("break_it", "another-bug", says="loss-scale")
def divides_the_loss(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        (loss_fn(model, batch) / 2).backward()
        optimizer.step()


@wrong("break_it", "calls-missing", says="0 steps")
def never_steps(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.zero_grad(set_to_none=False)


@wrong("break_it", "calls-missing", says="0 backward passes")
def never_goes_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad(set_to_none=False)
        loss_fn(model, batch)
        optimizer.step()


@wrong("break_it", "calls-missing", says="4 steps")
def leaves_a_batch_out(model, batches, loss_fn, optimizer):
    for batch in batches[1:]:
        loss_fn(model, batch).backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@wrong("break_it", "calls-missing", says="5 backward passes and 0 steps")
def steps_another_optimizer(model, batches, loss_fn, optimizer):
    another = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.zero_grad(set_to_none=False)
        another.step()


@wrong("break_it", "nothing-to-discard")
def zeroes_in_a_hook(model, batches, loss_fn, optimizer):
    for p in model.parameters():
        p.register_hook(lambda grad: grad * 0)
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()


@wrong("break_it", "calls-missing", says="1 steps")
def steps_once(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.zero_grad(set_to_none=False)
    optimizer.step()


@wrong("break_it", "calls-missing", says="10 steps")
def steps_twice(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        loss_fn(model, batch).backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@wrong("break_it", "some-get-through")
def zeroes_every_second(model, batches, loss_fn, optimizer):
    for number, batch in enumerate(batches):
        optimizer.zero_grad(set_to_none=False)
        loss_fn(model, batch).backward()
        if number % 2:
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@wrong("break_it", "nothing-to-discard")
def multiplies_the_loss_by_zero(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad(set_to_none=False)
        (loss_fn(model, batch) * 0).backward()
        optimizer.step()


@wrong("break_it", "raises")
def detaches_the_loss(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).detach().backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
