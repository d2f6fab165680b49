"""What `audit()` and `record()` cost: `python tests/benchmarks/audit_overhead.py [cuda] [--all]`.

Prints, beside its bar: how many times as long the smallest step takes (1.5) and a step of 18 tensors (1.05), and what
an audit costs once (0.1 s), also among a million objects more. `--all` adds other steps, `record` and anomaly mode. The
same training runs in turn with and without, in short blocks; a ratio is the median over the rounds, and the ratio of
the two runs without an audit says how far any can be trusted. On a CPU only the process's own time counts.
"""

import gc
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
from course_utils.audit.history import PROBED_GRAPHS

DEVICE = "cuda" if "cuda" in sys.argv[1:] else "cpu"
WARM_UP = PROBED_GRAPHS + 1  # steps: the first are looked at more closely, which is a cost of once
now = time.process_time if DEVICE == "cpu" else time.perf_counter  # others may use the same cores
WAYS = {
    "audit": audit,
    "record": record,
    "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
}


class Training:
    """A model and its batches. With `divide`, each loss is divided by the micro-batches of the window."""

    def __init__(self, model, inputs, items, optimizer=torch.optim.SGD, n=1, divide=True):
        torch.manual_seed(0)
        self.model, self.divisor = model.to(DEVICE), n if divide else None
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3)
        self.batches = [
            (torch.randn(items, inputs).to(DEVICE), torch.randint(4, (items,)).to(DEVICE)) for _ in range(n)
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for x, y in self.batches:
                loss = F.cross_entropy(self.model(x), y)
                (loss / self.divisor if self.divisor else loss).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def seconds(self, context, steps: int) -> float:
        with context():
            self.run(WARM_UP)
            wait()
            start = now()
            self.run(steps)
            wait()
            return (now() - start) / steps


def smallest() -> Training:
    return Training(nn.Linear(8, 4), 8, 4, divide=False)


def layers(count: int, width: int, items: int, **options) -> Training:
    found = [layer for _ in range(count) for layer in (nn.Linear(width, width), nn.GELU())]
    return Training(nn.Sequential(*found), width, items, **options)


def eighteen_tensors() -> Training:
    return layers(9, 256, 64, optimizer=torch.optim.AdamW, divide=False)


def measure(name: str, training: Training, steps: int, rounds: int, bar: float | None = None, ways=("audit",)) -> None:
    times = {way: [] for way in ("without", *ways, "without, again")}
    for k in trange(rounds + 1, desc=name, leave=False):
        for way, seconds in times.items():
            taken = training.seconds(WAYS.get(way, nullcontext), steps)
            if k:  # the first round warms up
                seconds.append(taken)
    plain = [(a + b) / 2 for a, b in zip(times["without"], times["without, again"], strict=True)]
    print(f"{name}: {1e3 * statistics.median(plain):.3f} ms without an audit")
    for way in (*ways, "without, again"):
        beside = times["without"] if way == "without, again" else plain
        ratio = statistics.median(a / b for a, b in zip(times[way], beside, strict=True))
        print(f"  {way:16} {ratio:.3f} times" + (f" (bar {bar})" if bar and way == "audit" else ""))


def start_up(objects: int, rounds: int = 9) -> None:
    heap = [[k] for k in range(objects)]
    training, once = smallest(), []
    training.run(3)
    for _ in range(rounds):
        start = now()
        training.run(WARM_UP)
        wait()
        plain = now() - start
        start = now()
        with audit():
            training.run(WARM_UP)
            wait()
        once.append(now() - start - plain)
    tracked = len(gc.get_objects())
    print(f"once: {1e3 * statistics.median(once):.0f} ms among {tracked:,} objects (bar 100 ms)")
    del heap


def wait() -> None:
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # detect_anomaly warns that it is slow
    gc.collect()
    gc.freeze()  # what is here now is not searched when an audit begins: what that costs is measured apart
    measure("smallest step", smallest(), steps=100, rounds=60, bar=1.5)
    measure("18 tensors", eighteen_tensors(), steps=10, rounds=15, bar=1.05)
    gc.unfreeze()
    start_up(0)
    start_up(1_000_000)
    gc.freeze()
    if "--all" in sys.argv[1:]:
        items = 48 if DEVICE == "cpu" else 8192
        measure("toy step", Training(nn.Linear(8, 4), 8, 4, torch.optim.AdamW), 100, 30, ways=WAYS)
        measure("18 small tensors", layers(9, 64, 16), 50, 30, ways=WAYS)
        measure("96 tensors, window of 2", layers(48, 384, items, optimizer=torch.optim.AdamW, n=2), 2, 10, ways=WAYS)


if __name__ == "__main__":
    main()
