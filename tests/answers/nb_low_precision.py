"""Answers to "bf16_window": a bfloat16 model with float32 sums and float32 copies."""

import torch

from answers import right, wrong


def step(model, master, sums, samples, optimizer):
    """Steps the copies with the mean, and rounds them into the model."""
    for held, total in zip(master, sums, strict=True):
        held.grad = total / samples
    optimizer.step()
    with torch.no_grad():
        for p, held in zip(model.parameters(), master, strict=True):
            p.copy_(held)


@right("bf16_window")
def with_a_list_of_sums(model, master, window, loss_fn, optimizer):
    sums = [torch.zeros_like(held) for held in master]
    for batch in window:
        model.zero_grad()
        loss_fn(model, batch).backward()
        for p, total in zip(model.parameters(), sums, strict=True):
            total += p.grad
    model.zero_grad()
    step(model, master, sums, sum(map(len, window)), optimizer)


@right("bf16_window")
def with_hooks_that_are_removed(model, master, window, loss_fn, optimizer):
    def move(p):
        p.main_grad += p.grad
        p.grad = None

    hooks = []
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p, dtype=torch.float32)
        hooks.append(p.register_post_accumulate_grad_hook(move))
    for batch in window:
        loss_fn(model, batch).backward()
    for hook in hooks:
        hook.remove()
    step(model, master, [p.main_grad for p in model.parameters()], sum(map(len, window)), optimizer)


@right("bf16_window")
def with_autograd_grad_into_the_copies(model, master, window, loss_fn, optimizer):
    samples = sum(len(batch) for batch in window)
    for batch in window:
        gradients = torch.autograd.grad(loss_fn(model, batch), list(model.parameters()))
        for held, gradient in zip(master, gradients, strict=True):
            share = gradient.float() / samples
            held.grad = share if held.grad is None else held.grad + share
    optimizer.step()
    optimizer.zero_grad()
    for p, held in zip(model.parameters(), master, strict=True):
        p.data.copy_(held)


@wrong("bf16_window", "low-precision", "deepspeedai/DeepSpeed#1800", says="stopped growing")
def sums_in_bfloat16(model, master, window, loss_fn, optimizer):
    model.zero_grad()
    for batch in window:
        loss_fn(model, batch).backward()
    step(model, master, [p.grad.float() for p in model.parameters()], sum(map(len, window)), optimizer)


@wrong("bf16_window", "lost-updates", says="set from the model's weights")
def copies_the_weights_first(model, master, window, loss_fn, optimizer):
    for p, held in zip(model.parameters(), master, strict=True):
        held.copy_(p.detach())
    with_a_list_of_sums(model, master, window, loss_fn, optimizer)


def without(name):
    """The first answer, less one thing."""

    def answer(model, master, window, loss_fn, optimizer):
        sums = [torch.zeros_like(held) for held in master]
        for batch in window:
            if name != "zeroing inside":
                model.zero_grad()
            loss_fn(model, batch).backward()
            for p, total in zip(model.parameters(), sums, strict=True):
                if name == "the sum":
                    total.zero_()
                total += p.grad
        samples = {"division": 1, "samples": len(window)}.get(name, sum(map(len, window)))
        for held, total in zip(master, sums, strict=True):
            held.grad = None if name == "gradients" else total / samples
        if name != "the step":
            optimizer.step()
        if name == "one step":
            optimizer.step()
        for p, held in zip(model.parameters(), master, strict=True):
            if name == "format":
                p.data = held.clone()
            elif name != "copies":
                p.data.copy_(held)

    answer.__name__ = f"without_{name.replace(' ', '_')}"
    return answer


wrong("bf16_window", "stale-copies", says="rounded")(without("copies"))
wrong("bf16_window", "loss-scale")(without("division"))
wrong("bf16_window", "discarded-gradients")(without("the sum"))
wrong("bf16_window", "empty-step")(without("gradients"))
wrong("bf16_window", "leftover-gradients")(without("the step"))
wrong("bf16_window", "irregular-window")(without("one step"))
wrong("bf16_window", "wrong-format")(without("format"))
wrong("bf16_window", "stale-gradients")(without("zeroing inside"))


@wrong("bf16_window", "leaves-hooks", says="counts twice")
def leaves_its_hooks(model, master, window, loss_fn, optimizer):
    def add(p):
        p.main_grad += p.grad

    for p in model.parameters():
        p.main_grad = torch.zeros_like(p, dtype=torch.float32)
        p.register_post_accumulate_grad_hook(add)
    for batch in window:
        model.zero_grad()
        loss_fn(model, batch).backward()
    model.zero_grad()
    step(model, master, [p.main_grad for p in model.parameters()], sum(map(len, window)), optimizer)


@wrong("bf16_window", "stale-gradients", says="window before")
def keeps_its_sums(model, master, window, loss_fn, optimizer):
    for p in model.parameters():
        if not hasattr(p, "main_grad"):
            p.main_grad = torch.zeros_like(p, dtype=torch.float32)
    for batch in window:
        model.zero_grad()
        loss_fn(model, batch).backward()
        for p in model.parameters():
            p.main_grad += p.grad
    step(model, master, [p.main_grad for p in model.parameters()], sum(map(len, window)), optimizer)
