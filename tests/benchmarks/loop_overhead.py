"""What `train_epoch` costs compared with the same loop written by hand: `python tests/benchmarks/loop_overhead.py`.

`train_epoch` leaves out a window whose gradient holds an infinity or a NaN. So does the loop by hand that it is
measured against; another one, which doesn't look, says what looking costs. All run in turn, on one thread. The first
runs a second time as the control: how far its ratio to itself is from 1 is how far any ratio here can be trusted. The
ratios are medians over the rounds, so that a busy moment, which slows all loops of a round, counts little.
"""

import statistics
import time
from itertools import islice

import torch
from torch.nn import functional as F
from tqdm import trange

from course_utils import mlp, train_epoch

MICRO_BATCHES, N, ROUNDS = 64, 4, 300


def cross_entropy(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def by_hand(model, batches, optimizer, n, looks=True):
    optimizer.zero_grad()
    losses = []
    iterator = iter(batches)
    while window := list(islice(iterator, n)):
        total = sum(len(x) for x, _ in window)
        window_loss = 0.0
        for batch in window:
            loss = cross_entropy(model, batch) * (len(batch[0]) / total)
            loss.backward()
            window_loss += loss.detach()
        if not looks or all(p.grad.isfinite().all() for p in model.parameters()):
            optimizer.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    return torch.stack(losses).tolist()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = mlp(8, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.randn(4, 8), torch.randint(4, (4,))) for _ in range(MICRO_BATCHES)]
    loops = {
        "train_epoch": lambda: train_epoch(model, batches, cross_entropy, optimizer, n=N),
        "by hand": lambda: by_hand(model, batches, optimizer, N),
        "by hand, again": lambda: by_hand(model, batches, optimizer, N),
        "without a look": lambda: by_hand(model, batches, optimizer, N, looks=False),
    }
    times = {name: [] for name in loops}
    for _ in trange(ROUNDS, desc="rounds"):
        for name, loop in loops.items():
            start = time.perf_counter()
            loop()
            times[name].append(time.perf_counter() - start)

    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, median in medians.items():
        print(f"{name:15} {1e6 * median / MICRO_BATCHES:7.1f} microseconds per micro-batch (median of {ROUNDS} rounds)")
    for name in ("train_epoch", "by hand, again", "without a look"):
        ratio = statistics.median(a / b for a, b in zip(times[name], times["by hand"], strict=True))
        print(f"{name} over by hand: {ratio:.3f}")


if __name__ == "__main__":
    main()
