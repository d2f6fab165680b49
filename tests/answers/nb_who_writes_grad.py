"""Answers to "dirty", a guard that names the parameters whose gradient is not clean."""

import torch

from answers import right, wrong


@right("dirty")
def dirty(model):
    names = []
    for name, p in model.named_parameters():
        if p.grad is not None and torch.count_nonzero(p.grad) > 0:
            names.append(name)
    return names


@right("dirty")
def dirty_in_one_line(model):
    return [name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()]


@right("dirty")
def dirty_by_comparison(model):
    held = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return [name for name, grad in held.items() if not torch.equal(grad, torch.zeros_like(grad))]


@right("dirty")
def dirty_set(model):
    return {name for name, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()}


@right("dirty")
def dirty_generator(model):
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        if any(entry != 0 for entry in p.grad.flatten()):
            yield name


def named(holds):
    """A guard that names every parameter of which this holds."""
    return lambda model: [name for name, p in model.named_parameters() if holds(p)]


def judged_by(holds):
    """A guard that names every parameter whose gradient is there and is so."""
    return named(lambda p: p.grad is not None and holds(p.grad))


wrong("dirty", "crashes-on-none")(named(lambda p: p.grad.any()))
wrong("dirty", "none-is-clean")(lambda model: [name for name, _ in model.named_parameters()])
wrong("dirty", "zeros-are-clean")(named(lambda p: p.grad is not None))
wrong("dirty", "signs-cancel")(judged_by(lambda grad: grad.sum() != 0))
wrong("dirty", "misses-nan")(judged_by(lambda grad: grad.norm() > 0))
wrong("dirty", "misses-inf")(judged_by(lambda grad: (grad != 0).any() and not grad.isinf().any()))
wrong("dirty", "misses-small")(judged_by(lambda grad: not grad.norm() < 1e-8))
wrong("dirty", "misses-negative")(judged_by(lambda grad: (grad > 0).any()))
wrong("dirty", "misses-partial")(judged_by(lambda grad: grad.all()))
wrong("dirty", "misses-gradients")(lambda model: [])
wrong("dirty", "misses-frozen")(named(lambda p: p.requires_grad and p.grad is not None and p.grad.any()))
wrong("dirty", "misses-bias")(lambda model: [name for name in dirty(model) if "weight" in name])
wrong("dirty", "first-only")(lambda model: dirty(model)[:1])
wrong("dirty", "last-only")(lambda model: dirty(model)[-1:])
wrong("dirty", "named-twice")(lambda model: dirty(model) * 2)
wrong("dirty", "names-clean")(lambda model: [name for name, _ in model.named_parameters()] if dirty(model) else [])
wrong("dirty", "wrong-names")(lambda model: [name.rpartition(".")[0] for name in dirty(model)])
wrong("dirty", "wrong-type")(lambda model: any(p.grad is not None for p in model.parameters()))
wrong("dirty", "not-attempted")(lambda model: print(dirty(model)))
wrong("dirty", "raises")(judged_by(lambda grad: grad != 0))


@wrong("dirty", "stops-at-none")
def returns_at_the_first_none(model):
    names = []
    for name, p in model.named_parameters():
        if p.grad is None:
            return names
        if p.grad.any():
            names.append(name)
    return names


@wrong("dirty", "changes-gradients")
def clears_what_it_sees(model):
    names = dirty(model)
    model.zero_grad()
    return names


@wrong("dirty", "changed-input")
def thaws_the_model(model):
    model.requires_grad_(True)
    return dirty(model)
