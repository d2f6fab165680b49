"""The exercise of notebook *several optimizers*: a GAN whose two updates use their own gradients."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim import SGD, Adam

from course_utils.loops import windows
from course_utils.memory import saved_bytes
from course_utils.models import mlp
from course_utils.practice.bench import Exercise, Seen, edits
from course_utils.practice.loop import LOUD, QUIET, Loop, Memory, Weights, twice

FOREIGN = "updates of the {} that hold gradients of the other's loss"
EQUAL, RAGGED, REAL = (2,) * 6, (4, 2, 1, 3, 2), (4, 4, 4, 2, 3)


def solution(g, d, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        total = sum(len(batch) for batch in window)
        for loss, optimizer in ((d_loss, d_optimizer), (g_loss, g_optimizer)):
            optimizer.zero_grad()
            for batch in window:
                (loss(batch) * len(batch) / total).backward()
            optimizer.step()


class Net(Loop):
    """One of the two networks; `other` is the one that its loss goes through as well."""

    other: "Net"

    def __init__(self, case, name: str):
        super().__init__(case, losses=2)
        self.name, self.updates.name = name, f"the {name}: "

    def loss(self, batch: Tensor) -> Tensor:
        return self.loss_fn(self.model, batch) + self.other.model(batch + len(self.samples)).mean() * self.case.gain

    def seen(self) -> Seen:
        """What each update holds of the network's own loss, and which hold gradients of the other's."""
        own = len(self.samples)
        mine = replace(self.updates, owner=self.updates.owner[:own], rows=[row[:own] for row in self.updates.rows])
        foreign = [number for number, row in enumerate(self.updates.rows, start=1) if row[own:].any()]
        return {self.name: mine, FOREIGN.format(self.name): foreign}


def watch(answer: Callable, case) -> Seen:
    if case.real:
        return _watch_real(answer, case)
    g, d = Net(case, "generator"), Net(case, "discriminator")
    g.other, d.other = d, g

    def call(batches: list[Tensor]) -> object:
        d.k = g.k
        return answer(g.model, d.model, batches, g.loss, d.loss, g.optimizer, d.optimizer, case.n)

    seen = g.run(call)
    learn = all(net.model.weight.requires_grad for net in (g, d))
    return {**d.seen(), **g.seen(), "both learn": learn, "input": seen["input"]}


def _watch_real(answer: Callable, case) -> Seen:
    """Two real networks, on real numbers and noise."""
    nets = nn.ModuleDict({"generator": mlp(2, 4, 3), "discriminator": mlp(3, 4, 1)}).double()
    g, d = nets.values()
    optimizers = SGD(g.parameters(), lr=0.1, momentum=0.9), Adam(d.parameters(), lr=0.01)
    batches = [torch.randn(size, 5, dtype=torch.float64) for size in case.calls[0]]

    def g_loss(batch: Tensor) -> Tensor:
        return softplus(-d(g(batch[:, 3:]))).mean()

    def d_loss(batch: Tensor) -> Tensor:
        return (softplus(d(g(batch[:, 3:]))) + softplus(-d(batch[:, :3]))).mean()

    with saved_bytes(nets) as saved:
        answer(g, d, batches, g_loss, d_loss, *optimizers, case.n)
    weights = Weights({name: p.detach() for name, p in nets.named_parameters()})
    return {"weights": weights, "memory": Memory(saved.peak, 1.5)}


LOSSES = "((d_loss, d_optimizer), (g_loss, g_optimizer))"
STEP, ZERO = "optimizer.step()", "optimizer.zero_grad()"
GAN_UPDATES = Exercise(
    "gan_updates",
    "several_optimizers",
    watch,
    solution,
    cases=[
        *(twice(EQUAL, n, gain=QUIET) for n in (2, 4)),
        *(twice(RAGGED, n, gain=QUIET) for n in (2, 4, 1, 100)),
        twice(EQUAL, 2, dirty=True, gain=QUIET),
        twice(RAGGED, 2, gain=LOUD),
        *(twice(REAL, n, real=True) for n in (1, 2, 4)),
    ],
    edits=[
        *edits("orphan-parameters/no-grad", ZERO, f"{ZERO}\ng.requires_grad_(False)\nd.requires_grad_(False)"),
        *edits("wrong-order", LOSSES, "((g_loss, g_optimizer), (d_loss, d_optimizer))"),
        *edits("wrong-order", STEP, "loss is g_loss and [each.step() for each in (d_optimizer, g_optimizer)]"),
    ],
    channels={"both learn": "orphan-parameters"}
    | {FOREIGN.format(name): "foreign-gradients" for name in ("discriminator", "generator")},
)
