"""The exercise of *moe*: the balance loss of a window, micro-batch by micro-batch."""

import torch

from course_utils.exercises.judging import exercise, returned, same, unchanged

SIZES = ((6,), (3, 5, 2), (1, 1, 8, 4))  # the tokens of each window's micro-batches
HINT = "Which tokens is each expert's share of choices counted over, and each mean probability? Step 1 counts first."


def made(sizes, experts):
    """The micro-batches of a window, each with its own favourite expert."""
    torch.default_generator.manual_seed(experts)
    scores = [torch.randn(n, experts) for n in sizes]
    for own, favourite in zip(scores, (1, 0, 2, 1), strict=False):
        own[:, favourite] += 2
    return [own.softmax(dim=1).requires_grad_() for own in scores]


@exercise("one micro-batch and ragged ones of different domains, one and two experts a token: loss and gradient agree.")
def balance_losses(answer):
    for sizes, k in zip(SIZES, (2, 1, 2), strict=True):
        window, experts = made(sizes, 3 + len(sizes)), 3 + len(sizes)
        losses = returned(answer(window, k), "a list of losses")
        unchanged([*window], made(sizes, experts))
        tokens = torch.cat(window)
        shares = torch.zeros_like(tokens).scatter(1, tokens.topk(k).indices, 1.0).mean(0) / k
        case = f"micro-batches of {', '.join(map(str, sizes))} tokens, k = {k}"
        same(f"{case}: the sum of the losses", sum(losses), experts * (shares * tokens.mean(0)).sum(), hint=HINT)
        for number, (loss, own) in enumerate(zip(losses, window, strict=True), start=1):
            (gradient,) = torch.autograd.grad(loss, own)
            what = f"{case}: the gradient of loss {number} in the probabilities of its micro-batch"
            same(what, gradient, (experts * shares / len(tokens)).expand_as(own), hint=HINT)
