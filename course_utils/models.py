"""The small models that the notebooks train."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint


def mlp(*sizes: int, dtype: torch.dtype | None = None) -> nn.Sequential:
    """A multi-layer perceptron with tanh between its linear layers.

    Tanh rather than ReLU: it has no kink, so finite differences agree with the gradient everywhere.

    Args:
        *sizes: The width of the input, of each hidden layer and of the output; two or more.
        dtype: Of its weights; the default dtype if None.

    Example:
        >>> mlp(64, 32, 10)(torch.zeros(5, 64)).shape
        torch.Size([5, 10])
    """
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair, dtype=dtype), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


class Tally(nn.Module):
    """A model whose gradient is readable: `tally.weight.grad[i]` is the weight of sample `i`.

    Sample `i` is the integer `i`, and its loss is `weight[i]`, so the derivative of any weighted
    mean of losses with respect to `weight[i]` is the weight of sample `i` in that mean. Run a
    training loop on a tally, and before each step `.grad` shows what the loop makes of its data.
    The parameters start at zero.

    Args:
        items: The number of samples.

    Example:
        >>> tally = Tally(4)
        >>> tally(torch.tensor([0, 1])).mean().backward()
        >>> tally.weight.grad.tolist()
        [0.5, 0.5, 0.0, 0.0]
    """

    def __init__(self, items: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(items))

    def forward(self, batch: Tensor) -> Tensor:
        """The loss of each sample in `batch`, a vector of integers."""
        return self.weight[batch]


class Shares(NamedTuple):
    """The weight of each micro-batch in each update of a loop.

    Args:
        updates: One row per update, with a weight for each micro-batch: what `.grad` held before
            the step.
        left: The weights that are still in `.grad` at the end; empty if nothing is.
    """

    updates: list[list[float]]
    left: list[float]


def shares_of(loop: Callable, micro_batches: int, n: int, epochs: int = 1) -> Shares:
    """Runs a loop on a `Tally`, with one sample per micro-batch; reads `.grad` before every step.

    Args:
        loop: Called once per epoch as `loop(model, batches, loss_fn, optimizer, n)`, like the loops
            of the course; `loss_fn(model, batch)` is the mean loss of a micro-batch.
        micro_batches: How many there are in an epoch.
        n: Handed to the loop: micro-batches per update.
        epochs: How often the loop runs, on the same micro-batches.

    Example:
        >>> def one_update(model, batches, loss_fn, optimizer, n):
        ...     for batch in batches:
        ...         (loss_fn(model, batch) / n).backward()
        ...     optimizer.step()
        >>> shares_of(one_update, micro_batches=2, n=2)
        Shares(updates=[[0.5, 0.5]], left=[0.5, 0.5])
    """
    tally, updates = Tally(micro_batches), []
    optimizer = torch.optim.SGD(tally.parameters(), lr=1.0)

    def weights() -> list[float]:
        return [] if tally.weight.grad is None else tally.weight.grad.tolist()

    optimizer.register_step_pre_hook(lambda *_: updates.append(weights() or [0.0] * micro_batches))
    for _ in range(epochs):
        loop(tally, torch.arange(micro_batches).split(1), lambda model, batch: model(batch).mean(), optimizer, n)
    left = weights()
    return Shares(updates, left if any(left) else [])


class Transformer(nn.Module):
    """A small causal transformer, which scores the next symbol at every position.

    It looks back only, so padding at the end of a sequence changes no score before it. Positions
    are learned, and there is no dropout.

    Args:
        symbols: How many there are, including padding and special symbols.
        width: Of the embeddings; a multiple of `heads`.
        heads: Attention heads per block.
        blocks: How many blocks.
        longest: The length of the longest sequence.
        checkpointed: Save only each block's input, and run its forward pass again in backward; can
            be set later, too.

    Example:
        >>> Transformer(27, width=8)(torch.zeros(5, 4, dtype=torch.long)).shape
        torch.Size([5, 4, 27])
    """

    def __init__(
        self, symbols: int, width: int = 32, heads: int = 2, blocks: int = 1, longest: int = 32, checkpointed=False
    ):
        super().__init__()
        self.checkpointed = checkpointed
        self.symbols = nn.Embedding(symbols, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, symbols)

    def forward(self, batch: Tensor) -> Tensor:
        """Scores of shape (sequences, positions, symbols) for (sequences, positions) integers."""
        x = self.symbols(batch) + self.positions.weight[: batch.shape[1]]
        for block in self.blocks:
            x = checkpoint.checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.scores(self.norm(x))


class Block(nn.Module):
    """Causal self-attention, then a perceptron at each position; residual, layer norm first."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        sequences, positions, width = x.shape
        split = self.queries_keys_values(self.before_attention(x)).view(sequences, positions, 3, self.heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attended(attended.transpose(1, 2).reshape(sequences, positions, width))
        return x + self.mlp(self.before_mlp(x))
