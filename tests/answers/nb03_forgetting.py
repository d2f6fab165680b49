"""Answers to "forgets", a test at learning rate 0 for loops that use old gradients."""

import torch

from answers import edited, right, wrong


@right("forgets")
def notes_norms_after_each_backward_pass(loop, model, batch, loss_fn):
    norms = {p: [] for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: norms[p].append(p.grad.norm().item()))
    loop(model, [batch] * 4, loss_fn, torch.optim.AdamW(model.parameters(), lr=0.0))
    return max(max(seen) / seen[0] for seen in norms.values()) > 1.01


@right("forgets")
def compares_with_a_gradient_of_its_own(loop, model, batch, loss_fn):
    own = torch.autograd.grad(loss_fn(model, batch), list(model.parameters()))
    differ = torch.tensor(0)

    class Noting(torch.optim.SGD):
        def step(self, closure=None):
            for p, grad in zip(model.parameters(), own, strict=True):
                differ.add_(not torch.equal(p.grad, grad))

    loop(model, (batch for _ in range(3)), loss_fn, Noting(model.parameters(), lr=0.0))
    return differ > 0


CAT = "torch.cat([p.grad.flatten() for p in model.parameters()])"
for bug, *changes in (
    ("accuses", ("lr=0.0", "lr=0.1")),
    ("misses-it", ("return not", "return")),
    ("misses-it", (CAT, "model[0].weight.grad")),  # no copy
    ("misses-it", ("[batch] * 5", "[batch]")),
    ("too-few-steps", ("[batch] * 5", "[batch] * 2")),
    ("one-layer", (CAT, "model[0].weight.grad.clone()")),
    ("raises", ("seen[0])", "seen[9])")),
    ("wrong-type", ("return not all", "return list")),
    ("not-attempted", ("return not", "return ... if True else")),
):
    wrong("forgets", bug)(edited("forgets", *changes))
