"""Gradient accumulation on several ranks with DDP, as a script to copy.

    torchrun --nproc-per-node 2 ddp_example.py weights.pt

Each update is that of one process which has the micro-batches of all ranks. Notebook 10 runs
`train` and compares. A rank computes on a GPU of its own if there are GPUs, and on the CPU
otherwise. The course has run it on CPUs only.
"""

import math
import os
import sys
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils.data import digits  # your data instead

N = 4  # micro-batches of each rank in a window; an epoch's last window may be shorter
EPOCHS = 2
MAX_NORM = 0.3  # low enough to clip some of these updates


def new_model() -> nn.Module:
    # DDP sends rank 0's weights to all ranks anyway; dropout would need a seed for each rank.
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def new_optimizer(model: nn.Module, updates: int) -> tuple[torch.optim.Optimizer, CosineAnnealingLR]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, CosineAnnealingLR(optimizer, updates)


def loader_of(rank: int, ranks: int) -> DataLoader:
    """The micro-batches of one rank: as many as others have, or ranks would wait for each other."""
    data = TensorDataset(*digits())
    # Without drop_last some samples may come twice.
    sampler = DistributedSampler(data, ranks, rank, drop_last=True)
    return DataLoader(data, batch_size=48, sampler=sampler)  # the last one of an epoch is smaller


def train(rank: int, ranks: int, device: str | torch.device = "cpu") -> nn.Module:
    device = torch.device(device)
    model = DDP(new_model().to(device))
    loader = loader_of(rank, ranks)
    optimizer, scheduler = new_optimizer(model, EPOCHS * math.ceil(len(loader) / N))
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)  # or every epoch has the same order
        batches = iter(loader)
        while window := list(islice(batches, N)):
            total = torch.tensor(sum(len(x) for x, _ in window), device=device)
            dist.all_reduce(total)  # the samples of this window on all ranks
            for k, (x, y) in enumerate(window, start=1):
                with model.no_sync() if k < len(window) else nullcontext():  # around both passes
                    with torch.autocast(device.type, torch.bfloat16):  # float16 would need a scaler
                        loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum") / total
                    (loss * ranks).backward()  # since DDP divides by the ranks
            # The norm of the mean, so the same on every rank.
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return model.module


def main() -> None:
    torch.set_default_dtype(torch.float64)  # to compare with one process; leave it out
    has_gpu = torch.cuda.is_available()
    # The rank's number on its own machine.
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    # Without device_id NCCL would guess the rank's GPU.
    dist.init_process_group("nccl" if has_gpu else "gloo", device_id=device if has_gpu else None)
    model = train(dist.get_rank(), dist.get_world_size(), device)
    if dist.get_rank() == 0:
        # From the CPU, so that any machine can load it.
        torch.save(model.cpu().state_dict(), sys.argv[1])
        print(f"trained on {dist.get_world_size()} ranks, device: {device.type}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
