"""What `audit()` costs: `python tests/benchmarks/audit_overhead.py`, on one thread of a CPU.

Prints, beside its bar: how many times as long the smallest step takes (1.5) and a step of 18 tensors (1.05), and what
an audit costs once (0.1 s), also among a million objects more. The same training runs in turn without, with and without
an audit, in short blocks; a ratio is the median over the rounds, and the ratio of the two runs without an audit says
how far any can be trusted. Only the process's own time counts.
"""

import gc
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import trange

from gradaudit import audit
from gradaudit.history import PROBED_GRAPHS

WARM_UP = PROBED_GRAPHS + 1  # steps: the first are looked at more closely, which is a cost of once


def training(model: nn.Module, inputs: int, items: int, optimizer_class: type = torch.optim.SGD) -> Callable:
    """A function that makes so many steps."""
    torch.manual_seed(0)
    x, y = torch.randn(items, inputs), torch.randint(4, (items,))
    optimizer = optimizer_class(model.parameters(), lr=1e-3)

    def run(steps: int) -> None:
        for _ in range(steps):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def seconds(function: Callable, *arguments) -> float:
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def steady(context: Callable, run: Callable, steps: int) -> float:
    with context():
        run(WARM_UP)
        return seconds(run, steps)


def measure(name: str, run: Callable, steps: int, rounds: int, bar: float) -> None:
    ways = nullcontext, audit, nullcontext
    taken = [[steady(context, run, steps) for context in ways] for _ in trange(rounds + 1, desc=name, leave=False)]
    taken = taken[1:]  # the first round warms up
    ratio = median(audited / ((without + again) / 2) for without, audited, again in taken)
    print(f"{name}: {1e3 * median(without for without, *_ in taken) / steps:.3f} ms without an audit")
    print(f"  audit           {ratio:.3f} times (bar {bar})")
    print(f"  without, again  {median(again / without for without, _, again in taken):.3f} times")


def start_up(objects: int, run: Callable, rounds: int = 9) -> None:
    def audited() -> None:
        with audit():
            run(WARM_UP)

    heap = [[k] for k in range(objects)]
    once = median(seconds(audited) - seconds(run, WARM_UP) for _ in range(rounds))
    print(f"once: {1e3 * once:.0f} ms among {len(gc.get_objects()):,} objects (bar 100 ms)")
    del heap


def main() -> None:
    torch.set_num_threads(1)
    smallest = training(nn.Linear(8, 4), 8, 4)
    layers = [layer for _ in range(9) for layer in (nn.Linear(256, 256), nn.GELU())]
    gc.collect()
    gc.freeze()  # what is here now is not searched when an audit begins: what that costs is measured apart
    measure("smallest step", smallest, steps=100, rounds=60, bar=1.5)
    measure("18 tensors", training(nn.Sequential(*layers), 256, 64, torch.optim.AdamW), steps=10, rounds=15, bar=1.05)
    gc.unfreeze()
    start_up(0, smallest)
    start_up(1_000_000, smallest)


if __name__ == "__main__":
    main()
