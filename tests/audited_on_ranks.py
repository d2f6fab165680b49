"""Loops that the auditor judges on several ranks: every engine, right and wrong. Importable, so that every rank finds them."""

from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from on_ranks import mesh_of

from course_utils.audit import audit

N, UPDATES = 4, 5


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def sharded(model, mesh=None, layers=True, **options):
    for layer in model if layers else []:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def tensor_parallel(model):
    return parallelize_module(model, mesh_of("TP"), {"0": ColwiseParallel(), "2": RowwiseParallel()})


ENGINES = {
    "DDP": DistributedDataParallel,
    "DDP, bucket views": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "DDP, static graph": lambda model: DistributedDataParallel(model, static_graph=True),
    "FSDP2": sharded,
    "FSDP2, root only": lambda model: sharded(model, layers=False),
    "FSDP2, not resharded": lambda model: sharded(model, reshard_after_forward=False),
    "FSDP2, bfloat16": lambda model: sharded(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)),
    "FSDP2, offloaded": lambda model: sharded(model, offload_policy=CPUOffloadPolicy()),
    "HSDP": lambda model: sharded(model, mesh_of("HSDP")),
    "TP": tensor_parallel,
    "FSDP1": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
    "FSDP1, original parameters": lambda model: FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=True
    ),
}


@contextmanager
def synchronised(model, yes):
    """Surrounds a micro-batch: does its backward pass exchange gradients?"""
    if hasattr(model, "no_sync"):
        with nullcontext() if yes else model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(yes)
        yield
    else:
        yield


def train(engine, divide=True, sync="last", zero=True):
    """A loop as people write it. What the arguments say is wrong with it, if anything is."""
    model = ENGINES[engine](net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(N * UPDATES):
        last = i % N == N - 1
        with synchronised(model, {"every": True, "never": False}.get(sync, last)):
            loss = F.cross_entropy(model(torch.randn(4, 4)), torch.randint(2, (4,)))
            (loss / N if divide else loss).backward()
        if last:
            optimizer.step()
            if zero:
                optimizer.zero_grad()


def judged(function, *args):
    """What the auditor says on this rank: (level, rule) of each finding, and the micro-batches of each update."""
    with audit() as report:
        function(*args)
    windows = [window.size for window in report.history.windows]
    return [(finding.level, finding.rule, finding.message) for finding in report.findings], windows
