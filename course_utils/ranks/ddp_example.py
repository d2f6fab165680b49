"""Gradient accumulation on several ranks with DDP, as a script to copy.

    torchrun --nproc-per-node 2 ddp_example.py weights.pt

Each update is that of one process which has the micro-batches of all ranks. Notebook 10 runs `train` and compares.
A rank computes on a GPU of its own if there are GPUs, and on the CPU otherwise. The course has run it on CPUs only.
"""

import gc
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.data import digits  # your data instead

N = 4  # micro-batches of each rank in a window; the last window may be shorter


def new_model() -> nn.Module:
    torch.manual_seed(0)  # DDP sends rank 0's weights to all ranks anyway; dropout would need a seed for each rank
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def batches_of(rank: int, ranks: int) -> list[tuple[Tensor, Tensor]]:
    """The micro-batches of one rank: as many as on every other rank, or the ranks would wait for each other."""
    images, labels = digits()
    everything = list(zip(images.split(48), labels.split(48), strict=True))  # the last one is smaller
    return everything[: len(everything) // ranks * ranks][rank::ranks]


def train(rank: int, ranks: int, device: str | torch.device = "cpu") -> nn.Module:
    model = DDP(new_model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mine = batches_of(rank, ranks)
    for start in range(0, len(mine), N):
        window = mine[start : start + N]
        total = torch.tensor(float(sum(len(x) for x, _ in window)), device=device)
        dist.all_reduce(total)  # the samples of this window on all ranks
        for k, (x, y) in enumerate(window, start=1):
            with model.no_sync() if k < len(window) else nullcontext():  # around both passes
                loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum") / total
                (loss * ranks).backward()  # since DDP divides by the ranks
        optimizer.step()
        optimizer.zero_grad()
    return model.module


def large_batches(shards: list[list[tuple[Tensor, Tensor]]], n: int) -> nn.Module:
    """What the ranks must end up with: the same windows in one process, each as one large batch. For a test."""
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for start in range(0, len(shards[0]), n):
        pairs = [pair for mine in shards for pair in mine[start : start + n]]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def main() -> None:
    torch.set_default_dtype(torch.float64)  # to compare with one process; leave it out
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # the rank's number on its own machine
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = train(rank, ranks, device)
    if rank == 0:
        torch.save(model.cpu().state_dict(), sys.argv[1])  # from the CPU, so that any machine can load it
        print(f"trained on {ranks} ranks, device: {device.type}")
    dist.barrier()  # nobody leaves before the file is there
    gc.collect()  # frees DDP before its group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
