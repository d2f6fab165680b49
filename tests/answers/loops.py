"""What a loop of `model, batches, loss_fn, optimizer[, n]` makes of a real model, found without a judge."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product

import torch
from torch import nn

from course_utils import mlp


def outcomes_of_loop(
    answer: Callable,
    n_values: Sequence[int],
    dirty_starts: Sequence[bool],
    takes_n: bool = True,
    sizes: Sequence[Sequence[int]] = ((2,) * 6, (3, 1, 2, 4, 1)),
) -> Iterator[Callable]:
    """For every N and these sizes of micro-batches: what two epochs return, and all parameters after them."""
    for (n, some_sizes), is_dirty in zip(product(n_values, sizes), cycle(dirty_starts), strict=False):
        yield lambda n=n, s=some_sizes, is_dirty=is_dirty: trained(answer, n, s, is_dirty, takes_n)


def trained(answer: Callable, n: int, sizes: Sequence[int], is_dirty: bool, takes_n: bool) -> list[float]:
    generator = torch.Generator().manual_seed(n)
    torch.manual_seed(n)
    model = mlp(3, 4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    batches = [torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in sizes]
    if is_dirty:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
    returned = []
    for _ in range(2):
        result = answer(model, batches, squares, optimizer, *([n] if takes_n else []))
        returned += [] if result is None else [float(loss) for loss in result]
    return returned + torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def squares(model, batch):
    return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])


def large_batches_with_a_log(model, batches, loss_fn, optimizer, n=1):
    losses = []
    for start in range(0, len(batches), n):
        optimizer.zero_grad()
        loss = loss_fn(model, torch.cat(batches[start : start + n]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def large_batches(*loop):
    large_batches_with_a_log(*loop)
