"""What `audit()` and `record()` cost: `python tests/benchmarks/audit_overhead.py [cuda]`.

The same training runs in turn: without an audit, twice (the second is the control: how far its ratio to the first is
from 1 is how far any ratio here can be trusted), with an audit, with a record, and with
`torch.autograd.detect_anomaly`. The bars of the audit are 1.05 on a step of 20 ms or more, and 1.6 on a toy step of
0.1 ms: the smallest that there is, one layer, a loss as it is and plain SGD, is nearest to that. A record costs more,
since it measures the norms of all gradients after each backward call and at each step. What the audit costs once, to
attach and to judge, is reported apart.
"""

import statistics
import sys
import time
import warnings
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import trange

from course_utils import record
from course_utils.audit import audit

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
now = time.process_time if DEVICE == "cpu" else time.perf_counter  # others may use the same cores
WAYS = {
    "no audit": nullcontext,
    "no audit, again": nullcontext,
    "audit": audit,
    "record": record,
    "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
}


def toy() -> tuple[nn.Module, int, int, int, int]:
    return nn.Linear(8, 4), 8, 4, 100, 40  # model, inputs, items, steps and rounds


def smallest() -> tuple[nn.Module, int, int, int, int]:
    return nn.Linear(8, 4), 8, 16, 200, 40


def large() -> tuple[nn.Module, int, int, int, int]:
    """24 layers and 96 parameters; a step of two micro-batches takes 20 ms or more on one core."""
    layers = [layer for _ in range(24) for layer in (nn.Linear(384, 384), nn.LayerNorm(384), nn.GELU())]
    return nn.Sequential(*layers), 384, 48 if DEVICE == "cpu" else 8192, 5, 15


def train(model: nn.Module, batches: list, optimizer: torch.optim.Optimizer, steps: int, n: int | None) -> None:
    for _ in range(steps):
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            (loss / n if n else loss).backward()
        optimizer.step()
        optimizer.zero_grad()


def measure(name: str, make, optimizer_class: type[torch.optim.Optimizer], n: int | None) -> None:
    """With `n` None, there is one micro-batch in a step and its loss is not divided."""
    torch.manual_seed(0)
    model, inputs, items, steps, rounds = make()
    model.to(DEVICE)
    optimizer = optimizer_class(model.parameters(), lr=1e-3)
    batches = [(torch.randn(items, inputs).to(DEVICE), torch.randint(4, (items,)).to(DEVICE)) for _ in range(n or 1)]
    times, once = {way: [] for way in WAYS}, []
    for k in trange(rounds + 1, desc=name, leave=False):
        for way, context in WAYS.items():
            before = now()
            with context():
                train(model, batches, optimizer, 1, n)  # the audit searches for objects at the first backward
                wait()
                start = now()
                train(model, batches, optimizer, steps, n)
                wait()
                end = now()
            if k:  # the first round warms up
                times[way].append((end - start) / steps)
                if way == "audit":
                    once.append(start - before + now() - end)
    medians = {way: statistics.median(seconds) for way, seconds in times.items()}
    plain = medians["no audit"]
    print(f"{name}, {len(list(model.parameters()))} parameters, {len(batches)} micro-batches per step")
    for way, median in medians.items():
        print(f"  {way:16} {1e3 * median:8.3f} ms per step, {median / plain:.3f} times no audit")
    print(f"  an audit once, to attach, search and judge: {1e3 * statistics.median(once):.0f} ms")


def wait() -> None:
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # detect_anomaly warns that it is slow
    measure("smallest step", smallest, torch.optim.SGD, None)
    measure("toy step", toy, torch.optim.AdamW, 1)
    measure("step of 20 ms or more", large, torch.optim.AdamW, 2)


if __name__ == "__main__":
    main()
