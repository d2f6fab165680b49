"""What the tests run on each rank; importable, so that every rank finds it. The reference is one process with all."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR

from course_utils import evaluate, mlp, train_epoch
from course_utils.audit import audit

WIDTH = 9
SHARDS = [  # of each rank, the valid tokens of each sequence in each micro-batch; ranks run out at different times
    [[5, 1], [2], [9, 3, 1], [1], [4, 4], [7], [0, 0], [2, 8, 1]],
    [[3], [6, 2], [0], [8], [1, 1]],
    [[0], [0, 0], [0], [9], [4], [2], [5, 5], [6], [3, 1]],
    [],
]


def masked_mse(model, batch):
    squares = (model(batch["x"]) - batch["y"]).square().sum(-1)
    return (squares * batch["mask"]).sum() / batch["mask"].sum()


def tokens(batch):
    return batch["mask"].sum()


def shards(world, equal=False):
    """The micro-batches of each rank, the same on whichever process they are made."""
    random = torch.Generator().manual_seed(7)
    lengths = [[[1 + k % 5, 2 + (k + r) % 7] for k in range(7)] for r in range(world)] if equal else SHARDS[:world]
    return [
        [
            {
                "x": torch.randn(len(batch), WIDTH, 3, generator=random),
                "y": torch.randn(len(batch), WIDTH, 2, generator=random),
                "mask": (torch.arange(WIDTH) < torch.tensor(batch)[:, None]).to(torch.get_default_dtype()),
            }
            for batch in shard
        ]
        for shard in lengths
    ]


def new_model():
    torch.manual_seed(3)
    return mlp(3, 5, 2)


def optimizer_of(name, parameters):
    if name == "AdamW":
        return torch.optim.AdamW(parameters, lr=0.01)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def extras(optimizer, everything):
    if not everything:
        return {}
    return {
        "scaler": GradScaler("cpu", init_scale=1024.0),
        "max_norm": 0.3,
        "scheduler": ExponentialLR(optimizer, 0.5),
    }


def whole(tensors):
    """Parameters or gradients as one process would have them."""
    return [t.detach().full_tensor() if hasattr(t, "full_tensor") else t.detach().clone() for t in tensors]


def gradients_at_steps(model, optimizer):
    seen = []

    optimizer.register_step_pre_hook(lambda *_: seen.append(whole(p.grad for p in model.parameters())))
    return seen


def in_one_process(world, n, name, everything, equal=False):
    """Trains on large batches: window by window, what all ranks hold, in one micro-batch."""
    parts = shards(world, equal)
    longest = max(len(part) for part in parts)
    batches = []
    for start in range(0, longest, n):
        held = [batch for part in parts for batch in part[start : start + n]]
        batches.append({key: torch.cat([batch[key] for batch in held]) for key in held[0]})
    model = new_model()
    optimizer = optimizer_of(name, model.parameters())
    seen = gradients_at_steps(model, optimizer)
    losses = train_epoch(model, batches, masked_mse, optimizer, 1, tokens, **extras(optimizer, everything))
    scored = evaluate(model, batches, masked_mse, tokens)
    return losses, seen, whole(model.parameters()), optimizer.param_groups[0]["lr"], scored


def wrapped(kind):
    model = new_model()
    if kind == "FSDP2":
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model)
    if kind == "compiled DDP":
        return torch.compile(DistributedDataParallel(model), backend="eager")
    return DistributedDataParallel(model)


def on_this_rank(kind, n, name, everything, equal=False):
    """Trains on this rank's shard. The last value counts the messages: of gradients, by a hook, and of other things."""
    batches = shards(dist.get_world_size(), equal)[dist.get_rank()]
    model = wrapped(kind)
    optimizer = optimizer_of(name, model.parameters())
    seen = gradients_at_steps(model, optimizer)
    losses = train_epoch(model, batches, masked_mse, optimizer, n, tokens, **extras(optimizer, everything))
    scored = evaluate(model, batches, masked_mse, tokens)
    return losses, seen, whole(model.parameters()), optimizer.param_groups[0]["lr"], scored


def messages(n, micro_batches):
    """The sizes of the all-reduces of one epoch: (those of gradient buckets, the others)."""
    model = wrapped("DDP")
    plain = dist.all_reduce
    buckets, others = [], []

    def hook(state, bucket):
        buckets.append(bucket.buffer().numel())
        sent = plain(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return sent.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, hook)

    def counted(tensor, *args, **kwargs):
        others.append(tensor.numel())
        return plain(tensor, *args, **kwargs)

    dist.all_reduce = counted
    try:
        optimizer = optimizer_of("SGD", model.parameters())
        batches = shards(dist.get_world_size(), equal=True)[dist.get_rank()]
        batches = (batches * micro_batches)[:micro_batches]
        train_epoch(model, batches, masked_mse, optimizer, n, tokens)
    finally:
        dist.all_reduce = plain
    return buckets, others


class Branches(nn.Module):
    """One part is used on rank 0 only, one nowhere."""

    def __init__(self):
        super().__init__()
        self.always, self.rarely, self.never = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.always(x) + (self.rarely(x) if dist.get_rank() == 0 else 0)


def which_gradients(found):
    """After one window that rank 1 has nothing of: which parameters have a gradient on this rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = optimizer_of("SGD", model.parameters())
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad is not None for p in model.parameters()]))
    batch = (torch.ones(2, 3), torch.ones(2, 2))
    train_epoch(
        model,
        [batch] if dist.get_rank() == 0 or not found else [],
        lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        optimizer,
    )
    return seen


def uneven_shards():
    """FSDP2 with one micro-batch more on rank 0."""
    batches = shards(2, equal=True)[dist.get_rank()][: 3 - dist.get_rank()]
    model = wrapped("FSDP2")
    before = whole(model.parameters())
    try:
        train_epoch(model, batches, masked_mse, optimizer_of("SGD", model.parameters()), 4, tokens)
    except ValueError as error:
        return str(error), all(map(torch.equal, before, whole(model.parameters())))


def with_batchnorm():
    """DDP broadcasts BatchNorm's buffers in some forwards; a rank that has run out must not be waited for."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(2 if dist.get_rank() else 9)]
    losses = train_epoch(
        model,
        batches,
        lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        optimizer_of("SGD", model.parameters()),
        2,
    )
    return losses, whole(model.parameters())


def by_hand(kind):
    """A loop as people write it, N = 4, three epochs. `kind` says what is wrong with it, if anything is."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for i in range(4):
            last = i % 4 == 3
            synchronise = {"every": True, "never": False}.get(kind, last)
            items = torch.randint(1, 9, ()).item() if kind == "own means" else 4
            with nullcontext() if synchronise else model.no_sync():
                batch = torch.randn(items, 3) + rank, torch.randint(2, (items,))
                loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
                (loss if kind == "undivided" else loss / 4).backward()
            if last:
                optimizer.step()
                if kind != "never zeroed" or rank == 0:
                    optimizer.zero_grad()


def with_cross_entropy(counts):
    """`train_epoch` on this rank's micro-batches of so many items."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 2))
    batches = [(torch.randn(n, 3), torch.randint(2, (n,))) for n in counts[dist.get_rank()]]
    train_epoch(
        model,
        batches,
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        torch.optim.SGD(model.parameters(), lr=0.1),
        2,
    )


def audited(function, *args):
    """The findings on this rank, as (level, rule)."""
    with audit() as report:
        function(*args)
    return [(finding.level, finding.rule) for finding in report.findings]


def main():
    """What torchrun starts: a kind of `by_hand`, or `train_epoch` and the file for its parameters."""
    dist.init_process_group("gloo")
    if sys.argv[1] in ("never", "right"):
        by_hand(sys.argv[1])
    else:
        torch.set_default_dtype(torch.float64)
        parameters = on_this_rank("DDP", 3, "SGD", True)[2]
        if dist.get_rank() == 0:
            torch.save(parameters, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
