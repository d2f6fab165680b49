"""What a window of 8 micro-batches costs and computes on two ranks, with `train_epoch`, Accelerate and Fabric.

`torchrun --nproc-per-node 2 tests/benchmarks/ranks_side_by_side.py`, with the extra `bench`. Each trains the same
model on the same shards: two windows of 8 micro-batches and one of 3, whose sequences have unequal lengths. Rank 0
counts the all-reduces per window, those of gradients (by a communication hook) and others. It also compares the
gradients of the first and the last update with the gradient of the mean over all tokens of both ranks, as an error
relative to the norm of that gradient.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from course_utils import mlp, train_epoch, windows

N, LAST, UPDATES = 8, 3, 3
LR = 1e-12  # so small that every update finds the same parameters


def loss_fn(model, batch):
    squares = (model(batch["x"]) - batch["y"]).square().sum(-1)
    return (squares * batch["mask"]).sum() / batch["mask"].sum()


def tokens(batch):
    return batch["mask"].sum()


def shard(rank):
    random = torch.Generator().manual_seed(rank)
    batches = []
    for _ in range(2 * N + LAST):
        lengths = torch.randint(1, 10, (2, 1), generator=random)
        batches.append(
            {
                "x": torch.randn(2, 9, 3, generator=random),
                "y": torch.randn(2, 9, 2, generator=random),
                "mask": (torch.arange(9) < lengths).double(),
            }
        )
    return batches


def new_model():
    torch.manual_seed(0)
    return mlp(3, 16, 2)


def gradient(model):
    return torch.cat([p.grad.flatten().clone() for p in model.parameters()])


def reference():
    """The gradients of one process that has the batches of both ranks."""
    model, seen = new_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    optimizer.register_step_pre_hook(lambda *_: seen.append(gradient(model)))
    both = [pair for pair in zip(shard(0), shard(1), strict=True)]
    train_epoch(model, [batch for pair in both for batch in pair], loss_fn, optimizer, 2 * N, tokens)
    return seen


class Counts:
    """Counts the all-reduces of one library and keeps its gradients. `watch` needs its DDP model and its optimizer."""

    def __init__(self):
        self.buckets, self.others, self.gradients = [0], [0], []
        self._all_reduce = dist.all_reduce

    def watch(self, model: DistributedDataParallel, optimizer):
        def hook(state, bucket):
            self.buckets[-1] += 1
            work = self._all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        def step(*_):
            self.gradients.append(gradient(model))
            self.buckets.append(0)
            self.others.append(0)

        model.register_comm_hook(None, hook)
        optimizer.register_step_pre_hook(step)

    def __enter__(self):
        def all_reduce(*args, **kwargs):
            self.others[-1] += 1
            return self._all_reduce(*args, **kwargs)

        dist.all_reduce = all_reduce
        return self

    def __exit__(self, *error):
        dist.all_reduce = self._all_reduce


def ours(counts):
    model = DistributedDataParallel(new_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    counts.watch(model, optimizer)
    train_epoch(model, shard(dist.get_rank()), loss_fn, optimizer, N, tokens)


def by_accelerate(counts):
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=N, cpu=True)
    model = new_model()
    both = [batch for pair in zip(shard(0), shard(1), strict=True) for batch in pair]  # the ranks take turns
    loader = DataLoader(both, batch_size=1, collate_fn=lambda batches: batches[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    counts.watch(model, optimizer.optimizer)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_fn(model, batch))
            optimizer.step()
            optimizer.zero_grad()


def by_fabric(counts):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model = new_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=LR))
    counts.watch(model._forward_module, optimizer.optimizer)
    for window in windows(shard(dist.get_rank()), N):
        for k, batch in enumerate(window):
            with fabric.no_backward_sync(model, enabled=k < len(window) - 1):
                fabric.backward(loss_fn(model, batch) / len(window))
        optimizer.step()
        optimizer.zero_grad()


def main():
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    expected = reference()
    for name, train in {"train_epoch": ours, "Accelerate": by_accelerate, "Fabric": by_fabric}.items():
        with Counts() as counts:
            train(counts)
        errors = [
            ((mine - true).norm() / true.norm()).item() for mine, true in zip(counts.gradients, expected, strict=True)
        ]
        if dist.get_rank() == 0:
            print(
                f"{name:12} all-reduces of gradients per window {counts.buckets[:UPDATES]}, others "
                f"{counts.others[:UPDATES]}; relative error {errors[0]:.1e}, of the short window {errors[-1]:.1e}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
