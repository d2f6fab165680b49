"""What the tests run on each rank, and in one process with the data of all."""

import functools
import warnings
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR

from course_utils import count_collectives, evaluate, mlp, train_epoch, windows
from course_utils.loops import backward_window

WIDTH = 9
SHARDS = [  # of each rank, the valid tokens of each sequence in each micro-batch
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


def whole(tensors):
    """Parameters or gradients as one process would have them."""
    return [t.detach().full_tensor() if hasattr(t, "full_tensor") else t.detach().clone() for t in tensors]


def gradients_at_steps(model, optimizer):
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(whole(p.grad for p in model.parameters())))
    return seen


def large_batches(world, n, equal=False):
    """Window by window, what all ranks hold, in one micro-batch."""
    parts = shards(world, equal)
    longest = max(len(part) for part in parts)
    for start in range(0, longest, n):
        held = [batch for part in parts for batch in part[start : start + n]]
        yield {key: torch.cat([batch[key] for batch in held]) for key in held[0]}


def batches_of(world=0, n=3, equal=False):
    """The micro-batches of this rank; or the windows of so many ranks, each as one."""
    return list(large_batches(world, n, equal)) if world else shards(dist.get_world_size(), equal)[dist.get_rank()]


def fit(model, batches, n=3, loss_fn=masked_mse, weight=tokens, optimizer=None, **options):
    optimizer = optimizer or optimizer_of("SGD", model.parameters())
    return train_epoch(model, batches, loss_fn, optimizer, n, weight, **options)


@functools.cache  # each new mesh would make new process groups
def mesh_of(kind):
    world = dist.get_world_size()
    if kind == "HSDP":
        return init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (world,))


def wrapped(kind):
    model = new_model()
    if kind in ("FSDP2", "HSDP"):
        mesh = mesh_of(kind)
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if kind == "DDP, Python's reducer":
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            return DistributedDataParallel(model)
    if kind == "compiled DDP":
        return torch.compile(DistributedDataParallel(model), backend="eager")
    return DistributedDataParallel(model)


def trained(kind, n, name, everything, equal=False, world=0):
    """What training leaves on this rank, or in one process with the data of so many."""
    batches = batches_of(world, n, equal)
    model = new_model() if world else wrapped(kind)
    optimizer = optimizer_of(name, model.parameters())
    seen = gradients_at_steps(model, optimizer)
    more = {"scaler": GradScaler("cpu", init_scale=1024.0), "max_norm": 0.3, "scheduler": ExponentialLR(optimizer, 0.5)}
    losses = fit(model, batches, 1 if world else n, optimizer=optimizer, **(more if everything else {}))
    scored = evaluate(model, batches, masked_mse, tokens)
    return losses, seen, whole(model.parameters()), optimizer.param_groups[0]["lr"], scored


def in_a_loop_of_its_own(kind, n, equal=False):
    """The gradients and losses of `backward_window`, until no rank has anything left."""
    given = windows(batches_of(equal=equal), n)
    model = wrapped(kind)
    optimizer = optimizer_of("SGD", model.parameters())
    losses, seen = [], []
    while (loss := backward_window(model, next(given, []), masked_mse, tokens)) is not None:
        losses.append(float(loss))
        seen.append(whole(p.grad for p in model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    return losses, seen


def poisoned_mse(model, batch):
    """`masked_mse`; a poison makes only its gradient NaN: that of a square root at 0, times 0."""
    predicted = model(batch["x"])
    loss = masked_mse(lambda _: predicted, batch)
    return loss + (0 * predicted).sum().sqrt() if "poison" in batch else loss


def poisoned(batch, poison):
    return batch | ({"poison": True} if poison == "gradient only" else {"y": batch["y"] + poison})


def train_poisoned(model, batches, n, scaler, fused):
    """Trains and returns the log, the weights, the learning rate and the warnings."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    scheduler = ExponentialLR(optimizer, 0.5)
    scaler = None if scaler == "none" else GradScaler("cpu", enabled=scaler == "enabled")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        losses = train_epoch(model, batches, poisoned_mse, optimizer, n, tokens, scaler=scaler, scheduler=scheduler)
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    return losses, whole(model.parameters()), optimizer.param_groups[0]["lr"], messages


def poisoned_at(kind, n, scaler, fused, poison, positions=None):
    """Trains once with a poison at each position (rank, micro-batch), by default at all."""
    equal = kind != "DDP"
    results = {}
    for rank, batches in enumerate(shards(dist.get_world_size(), equal)):
        for position in range(len(batches)):
            if positions and (rank, position) not in positions:
                continue
            mine = batches_of(equal=equal)
            if rank == dist.get_rank():
                mine[position] = poisoned(mine[position], poison)
            results[rank, position] = train_poisoned(wrapped(kind), mine, n, scaler, fused)
    return results


def unusual(kind):
    """A model that the loops cannot train exactly on several ranks, or not always."""
    model = new_model()
    if kind == "holds a DDP model":
        model[0] = DistributedDataParallel(model[0])
    if kind == "FSDP2 on layers only":
        fully_shard(model[0])
    if kind == "FSDP2 with a parameter left out":
        return fully_shard(model, ignored_params={model[0].bias})
    if kind == "FSDP1":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    if kind == "static graph":
        return DistributedDataParallel(model, static_graph=True)
    if kind == "a model per rank":
        return DistributedDataParallel(model, process_group=dist.new_subgroups(1)[0])
    return model


def refused(kind):
    """What `train_epoch` and `backward_window` say, and whether everything is as it was before."""
    model, batches = unusual(kind), batches_of(equal=True)
    before = whole(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer = optimizer_of("SGD", model.parameters())
    sentences = [
        refusal_of(lambda: fit(model, batches, 2, optimizer=optimizer)),
        refusal_of(lambda: backward_window(model, batches[:2], masked_mse, tokens)),
    ]
    unchanged = all(map(torch.equal, before, whole(model.parameters()))) and not optimizer.state
    return sentences, unchanged and all(bool((p.grad == 1).all()) for p in model.parameters())


def refusal_of(train):
    try:
        train()
    except ValueError as error:
        return str(error)


class TwoHeads(nn.Module):
    """A batch names the heads that it uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.heads = nn.Linear(3, 5), nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 2)])
        self.sparse = True  # a name of its own, which says nothing about gradients

    def forward(self, x, heads):
        hidden = self.body(x).tanh()
        return sum(self.heads[k](hidden) for k in heads)


class Rows(nn.Embedding):
    def forward(self, hidden):
        return super().forward(torch.arange(len(hidden)))


def two_headed(kind):
    """A model, its loss, and the heads of each micro-batch of this rank."""
    module, rank = TwoHeads(), dist.get_rank()
    heads = {
        "the last uses one head": [[0, 1], [0, 1], [0]],
        "the last uses another head on each rank": [[0, 1], [0, 1], [rank]],
        "the last leaves out sparse rows on one rank": [[0, 1], [0, 1], [0, 1][: 1 + rank]],
        "found unused": [[0, 1], [0], [rank]],
        "found unused, a head in none": [[0], [0], [0]],
    }.get(kind, [[0, 1]] * 3)
    if "sparse" in kind:
        module.heads[1] = Rows(4, 2, sparse=True)
    if "unfrozen later" in kind:
        module.heads[1].requires_grad_(False)
    if kind == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["body.weight"])
    # Small buckets: a rank whose last one is never full has exchanged the others.
    model = DistributedDataParallel(module, find_unused_parameters="found" in kind, bucket_cap_mb=1e-5)
    if "frozen later" in kind:
        module.heads[1].requires_grad_("unfrozen" in kind or (rank == 1 and "on one rank" in kind))
    if kind == "added later":
        module.heads[1] = nn.Linear(5, 2)

    def loss_fn(model, batch):
        called = model.module if "model.module" in kind and hasattr(model, "module") else model
        predicted = called(*batch)
        return predicted.mean() * (-1) ** rank if "signs" in kind else predicted.square().mean()

    torch.manual_seed(rank)
    return model, loss_fn, [(torch.randn(4, 3), used) for used in heads]


def not_exchanged(kind):
    """What `train_epoch` and `backward_window` say, and whether the model is as it was."""
    model, loss_fn, batches = two_headed(kind)
    before = whole(model.parameters())
    said = [
        refusal_of(lambda: fit(model, batches, 3, loss_fn, lambda batch: 4)),
        refusal_of(lambda: backward_window(model, batches, loss_fn, lambda batch: 4)),
    ]
    unchanged = all(map(torch.equal, before, whole(model.parameters())))
    return said, unchanged and all(p.grad is None for p in model.parameters())


def exchanged(kind):
    """The gradients of all ranks' micro-batches, by DDP and in one process."""
    model, loss_fn, batches = two_headed(kind)
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, batches)
    backward_window(model, batches, loss_fn, lambda batch: 4)
    alone, every = TwoHeads(), sum(everything, [])  # noqa: RUF017
    for batch in every:
        (loss_fn(alone, batch) / len(every)).backward()
    return [[p.grad for p in one.parameters()] for one in (model, alone)]


def clipped(kind, factor, world=0):
    """The weights after an epoch with this factor before the loss, which clipping takes away."""
    model, told = new_model() if world else wrapped(kind), []
    batches, n = batches_of(world, equal=True), 1 if world else 3
    fit(model, batches, n, lambda *given: factor * masked_mse(*given), max_norm=0.3, on_update=told.append)
    return whole(model.parameters()), [update.norm / factor for update in told]


def two_losses(model, batch):
    """A mean over tokens and one over sequences; the first is NaN where there are no tokens."""
    predicted = model(batch["x"])
    return masked_mse(lambda _: predicted, batch), predicted.square().mean()


def two_counts(batch):
    return tokens(batch), len(batch["x"])


def with_two_losses(world=0):
    """Losses and weights on this rank, or in one process with what so many ranks hold."""
    model = new_model() if world else wrapped("DDP")
    return fit(model, batches_of(world), 1 if world else 3, two_losses, two_counts), whole(model.parameters())


def with_more_losses_on_rank_0():
    weight = two_counts if dist.get_rank() == 0 else tokens
    return refusal_of(lambda: backward_window(wrapped("DDP"), batches_of(), two_losses, weight))


def with_unequal_options(name):
    """Rank 0 has an option that the others don't have."""
    model = wrapped("DDP")
    optimizer = optimizer_of("SGD", model.parameters())
    options = {
        "max_norm": {"max_norm": 0.3},
        "scheduler": {"scheduler": ExponentialLR(optimizer, 0.5)},
        "scaler": {"scaler": GradScaler("cpu")},
        "on_update": {"on_update": print},
    }.get(name, {})
    if name == "learning rate" and dist.get_rank() == 0:
        optimizer.param_groups[0]["lr"] = 0.2
    if name == "inner learning rate":
        optimizer.inner = optimizer_of("SGD", model.parameters())
        optimizer.inner.param_groups[0]["lr"] = 0.1 + dist.get_rank()
    if name == "model" and dist.get_rank() == 0:
        model.module.added = nn.Linear(2, 2)
    mine = options if dist.get_rank() == 0 else {}
    return refusal_of(lambda: fit(model, batches_of(equal=True), optimizer=optimizer, **mine))


def alone(rank=None):
    """Training of a model per rank, or in one process with the micro-batches of a rank."""
    model = unusual("a model per rank") if rank is None else new_model()
    batches = batches_of() if rank is None else shards(2)[rank]
    return fit(model, batches), whole(model.parameters()), evaluate(model, batches, masked_mse, tokens)


def evaluated_between_epochs(world=0):
    """Losses and scores; the layer in the outermost part stays gathered after an evaluation."""
    model = new_model()
    if not world:
        fully_shard(model[0], mesh=mesh_of("FSDP2"))
        fully_shard(model, mesh=mesh_of("FSDP2"))
    optimizer = optimizer_of("SGD", model.parameters())
    batches, losses, scores = batches_of(world, equal=True), [], []
    for _ in range(2):
        losses += fit(model, batches, 1 if world else 3, optimizer=optimizer)
        scores += [evaluate(model, batches, masked_mse, tokens) for _ in range(2)]
    return losses, scores


def abandoned(call, **options):
    """What is said of an FSDP2 model after an error in the second micro-batch of a call."""
    model, batches = wrapped("FSDP2"), batches_of(equal=True)

    def loss_fn(model, batch):
        if batch is batches[1]:
            raise torch.OutOfMemoryError
        return masked_mse(model, batch)

    with suppress(torch.OutOfMemoryError):
        if call == "evaluate":
            evaluate(model, batches, loss_fn, tokens)
        fit(model, batches, 3, loss_fn, **options)
    return refusal_of(lambda: fit(model, batches, **options))


def collectives(kind, **options):
    """Those of an epoch of two windows of three micro-batches."""
    model = wrapped(kind)
    with count_collectives() as counts:
        fit(model, batches_of(equal=True)[:6], **options)
    return counts


def uneven(kind):
    """Rank 0 has one micro-batch more: what is said, and whether a forward pass was begun."""
    model, began = wrapped("FSDP2"), []
    if kind == "SyncBatchNorm":
        model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
        model.module[1] = nn.SyncBatchNorm(2)  # which DDP takes on a GPU only
    batches = batches_of(equal=True)[: 3 - dist.get_rank()]
    return refusal_of(lambda: fit(model, batches, 4, lambda *_: began.append(1))), began


def normalised(running_mean):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(WIDTH), nn.Linear(4, 2))
    model[1].running_mean.fill_(running_mean)
    return model


def evaluated_with_statistics_of_its_own(kind):
    """The score of this rank's batches, and the statistics afterwards."""
    module = normalised(running_mean=dist.get_rank())
    model = fully_shard(module, mesh=mesh_of("FSDP2")) if kind == "FSDP2" else DistributedDataParallel(module)
    module[1].running_mean.fill_(dist.get_rank())  # DDP has given every rank those of rank 0
    score = evaluate(model, batches_of(equal=True), masked_mse, tokens)
    return score, module[1].running_mean.tolist()


def updates_told(kind):
    model, told = wrapped(kind), []
    optimizer = optimizer_of("SGD", model.parameters())
    seen = gradients_at_steps(model, optimizer)
    losses = fit(model, batches_of(equal=kind != "DDP"), optimizer=optimizer, on_update=told.append)
    return losses, [float(nn.utils.get_total_norm(gradients)) for gradients in seen], [tuple(update) for update in told]


def with_batchnorm():
    """DDP broadcasts BatchNorm's buffers in some forward passes, for which no rank may wait."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(2 if dist.get_rank() else 9)]

    def loss_fn(model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    losses = fit(model, batches, 2, loss_fn, lambda batch: 4)
    return losses, whole(model.parameters()), evaluate(model, batches, loss_fn)
