"""Answers to "dirty", a guard that names the parameters whose gradient is not clean."""

from answers import edited, right, wrong
from solutions import solution

dirty = solution("dirty")


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


THERE = "p.grad is not None and p.grad.any()"
for bug, says, old, new in (
    ("wrong-names", "you name none", THERE, "True"),
    ("wrong-names", "you name zero", THERE, "p.grad is not None"),
    ("misses-mixed", "", "p.grad.any()", "p.grad.sum() != 0"),
    ("misses-nan", "", "p.grad.any()", "p.grad.norm() > 0"),
    ("misses-inf", "", "p.grad.any()", "p.grad.any() and not p.grad.isinf().any()"),
    ("misses-small", "", "p.grad.any()", "not p.grad.norm() < 1e-8"),
    ("misses-negative", "", "p.grad.any()", "(p.grad > 0).any()"),
    ("misses-partial", "", "p.grad.any()", "p.grad.all()"),
    ("misses-frozen", "", THERE, f"p.requires_grad and {THERE}"),
    ("misses-bias", "", THERE, f"'weight' in name and {THERE}"),
    ("changed-input", "", "    return", "    model.zero_grad()\n    return"),
):
    wrong("dirty", bug, says)(edited("dirty", (old, new)))

wrong("dirty", "wrong-names", "expected 1, got 2")(lambda model: dirty(model) * 2)
wrong("dirty", "wrong-names", "no parameter")(lambda model: [*dirty(model), "weights"])
wrong("dirty", "raises", "is not iterable")(lambda model: any(p.grad is not None for p in model.parameters()))
