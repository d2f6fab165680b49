"""Loops that the auditor judges on several ranks, right and wrong; ranks import them here."""

import gc
import sys
from contextlib import contextmanager, nullcontext

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils import train_epoch
from course_utils.loops import items
from gradaudit import audit
from on_ranks import masked_mse, mesh_of, shards, tokens, trained, wrapped
from runs import bits

N, UPDATES = 4, 5


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def sharded(model, mesh=None, layers=True, **options):
    for layer in model if layers else []:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


ENGINES = {
    "DDP": DistributedDataParallel,
    "DDP, bucket views": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "DDP, static graph": lambda model: DistributedDataParallel(model, static_graph=True),
    "compiled DDP": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
    "FSDP2": sharded,
    "FSDP2, root only": lambda model: sharded(model, layers=False),
    "FSDP2, not resharded": lambda model: sharded(model, reshard_after_forward=False),
    "FSDP2, bfloat16": lambda model: sharded(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)),
    "compiled FSDP2": lambda model: torch.compile(sharded(model), backend="eager"),
    "HSDP": lambda model: sharded(model, mesh_of("HSDP")),
    "TP": lambda model: parallelize_module(model, mesh_of("TP"), {"0": ColwiseParallel(), "2": RowwiseParallel()}),
}


@contextmanager
def synchronised(model, yes):
    """Surrounds a micro-batch: does its backward pass exchange gradients?"""
    model = getattr(model, "_orig_mod", model)
    if hasattr(model, "no_sync"):
        with nullcontext() if yes else model.no_sync():
            yield
    else:
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(yes)
        yield


@contextmanager
def scattered(model, yes):
    """Another way with HSDP: each micro-batch over the shards, the last over the replicas."""
    model.set_requires_all_reduce(yes)
    model.set_is_last_backward(yes)
    yield


def train(
    engine, kind="right", surround=synchronised, zero=lambda model, optimizer: optimizer.zero_grad(), average=None
):
    """A loop as people write it. `kind` says what is wrong with it, if anything is."""
    model = ENGINES[engine](net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(N * UPDATES):
        last = i % N == N - 1
        with surround(model, {"every": True, "never": False}.get(kind, i % N == 0 if kind == "first" else last)):
            size = torch.randint(1, 9, ()).item() if kind == "own means" else 4
            loss = F.cross_entropy(model(torch.randn(size, 4)), torch.randint(2, (size,)))
            (loss if kind == "undivided" else loss / N).backward()
        if last:
            if average is not None:
                average(model)
            optimizer.step()
            if kind != "never zeroed":
                zero(model, optimizer)
    return [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]


def zero_in_place(model, optimizer):
    optimizer.zero_grad(set_to_none=False)


def averaged_by_hand():
    """All micro-batches without an exchange, and one at the end by the script itself."""

    def average(model):
        for p in model.parameters():
            dist.all_reduce(p.grad)

    return judged(lambda: train("DDP", "never", average=average))


def beside_the_wrapper(how):
    """Fixes for windows of one that DDP exchanges, or not: the wrapper is left out, or doesn't know a layer."""
    late = nn.Linear(2, 2)
    model = DistributedDataParallel(nn.Sequential(net(), late) if how == "all layers" else net())
    called = model.module if how == "the module itself" else model
    called = nn.Sequential(called, late) if how == "a layer that came later" else called
    with audit() as report:
        optimizer = torch.optim.SGD(called.parameters(), lr=0.1)
        for _ in range(UPDATES):
            F.cross_entropy(called(torch.randn(4, 4)), torch.zeros(4, dtype=torch.long)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [(finding.level, finding.rule, finding.fix) for finding in report.findings]


def tokens_of(whose):
    """Sums over tokens, of which each rank has others, divided by those of this rank's window, or of all ranks'."""
    model, rank = DistributedDataParallel(nn.Linear(4, 3)), dist.get_rank()

    def loop():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        y = torch.tensor([0, 1, 2, 0]).where(torch.arange(4) < 2 + rank, torch.tensor(-100))
        total = torch.tensor(2.0 * (2 + rank))
        if whose == "all ranks":
            dist.all_reduce(total)
            total /= dist.get_world_size()
        for _ in range(UPDATES):
            for last in (False, True):
                with nullcontext() if last else model.no_sync():
                    (F.cross_entropy(model(torch.randn(4, 4)), y, reduction="sum") / total).backward()
            optimizer.step()
            optimizer.zero_grad()

    return judged(loop)[0]


def judged(function, *args, window=None):
    """The auditor on this rank: each finding's (level, rule), each update's micro-batches."""
    with audit(window) as report:
        function(*args)
    assert report.failure is None, report.failure
    sizes = [update.size for update in report.history.updates]
    return [(finding.level, finding.rule) for finding in report.findings], sizes


def judged_loops(engine, kinds, *args):
    return {kind: judged(train, engine, kind, *args) for kind in kinds}


def declared(kind):
    """The project's own loop, under `--window 4`."""
    batches = shards(dist.get_world_size(), equal=True)[dist.get_rank()]
    model = wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return judged(lambda: train_epoch(model, [*batches, batches[0]], masked_mse, optimizer, 4, tokens), window=4)


def ragged(counts):
    """`train_epoch` on this rank's micro-batches of so many items."""
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(n, 3), torch.randint(2, (n,))) for n in counts[dist.get_rank()]]
    loss_fn = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    return judged(lambda: train_epoch(model, batches, loss_fn, optimizer, 2, items))[0]


def pipeline(schedule, kind):
    """A stage for each rank; the micro-batches are inside the schedule."""
    rank = dist.get_rank()
    model = [nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 2)][rank]
    stage = PipelineStage(model, rank, dist.get_world_size(), torch.device("cpu"))

    def loss(scores, y):
        return F.cross_entropy(scores, y) / (N if kind == "divided twice" else 1)

    schedule = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}[schedule](
        stage, N, loss_fn=loss, scale_grads=kind != "undivided"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(UPDATES):
        if rank == 0:
            schedule.step(torch.randn(4 * N, 4))
        else:
            schedule.step(target=torch.randint(2, (4 * N,)))
        optimizer.step()
        if kind != "never zeroed":
            optimizer.zero_grad()


def judged_pipelines(schedule, kinds):
    return {kind: judged(pipeline, schedule, kind) for kind in kinds}


def same_bits(engine):
    """Do the auditor and its absence give the same parameters and leave the same random state?"""
    outcomes = []
    for watched in (nullcontext, audit):
        torch.manual_seed(0)
        with watched():
            parameters = train(engine)
        outcomes.append(bits([parameters, torch.rand(1)]))
    return outcomes[0] == outcomes[1]


def main():
    """What torchrun starts: a loop that never synchronises, then `train_epoch`."""
    dist.init_process_group("gloo")
    train("DDP", "never")
    torch.set_default_dtype(torch.float64)
    parameters = trained("DDP", 3, "SGD", True)[2]
    if dist.get_rank() == 0:
        torch.save(parameters, sys.argv[1])
    gc.collect()  # frees DDP, before whose end the group may not end
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
