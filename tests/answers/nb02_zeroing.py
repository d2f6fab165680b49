"""Answers to "train", a loop with one update per batch."""

from answers import outcomes, right, wrong
from answers.loops import large_batches, outcomes_of_loop


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


@outcomes("train", reference=large_batches)
def outcomes_of_train(answer):
    return outcomes_of_loop(answer, (1, 1), (True, False), takes_n=False)
