"""The exercise of notebook *several optimizers*: a GAN whose two updates use their own gradients."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from course_utils.exercises.bench import Exercise, Seen, edits
from course_utils.exercises.loop import Case, Loop, twice
from course_utils.loops import windows

FOREIGN = "updates of the {} that hold gradients of the other's loss"
EQUAL, RAGGED = (2,) * 6, (4, 2, 1, 3, 2)


def solution(g, d, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        total = sum(len(batch) for batch in window)
        for loss, optimizer in ((d_loss, d_optimizer), (g_loss, g_optimizer)):
            optimizer.zero_grad()
            for batch in window:
                (loss(batch) * len(batch) / total).backward()
            optimizer.step()


class Net(Loop):
    """One of the two networks. Its loss goes through the other one as well, and grows with the other's updates."""

    def __init__(self, case: Case, name: str):
        super().__init__(case, losses=2)
        self.name, self.updates.name = name, f"the {name}: "

    def loss(self, batch: Tensor) -> Tensor:
        others = self.other.model(batch + len(self.samples)).mean()
        return (self.loss_fn(self.model, batch) + others) * (1 + len(self.other.updates.rows))

    def seen(self) -> Seen:
        """What each update holds of the network's own loss, and which hold gradients of the other's."""
        own = len(self.samples)
        mine = replace(self.updates, owner=self.updates.owner[:own], rows=[row[:own] for row in self.updates.rows])
        foreign = [number for number, row in enumerate(self.updates.rows, start=1) if row[own:].any()]
        return {self.name: mine, FOREIGN.format(self.name): foreign}


def watch(answer: Callable, case: Case) -> Seen:
    g, d = Net(case, "generator"), Net(case, "discriminator")
    g.other, d.other = d, g

    def call(batches: list[Tensor]) -> object:
        d.k = g.k
        return answer(g.model, d.model, batches, g.loss, d.loss, g.optimizer, d.optimizer, case.n)

    seen = g.run(call)
    learn = all(p.requires_grad for net in (g, d) for p in net.model.parameters())
    return {**d.seen(), **g.seen(), LEARN: learn, "input": seen["input"]}


LEARN = "both networks learn at the end"
LOSSES = "((d_loss, d_optimizer), (g_loss, g_optimizer))"
STEP, ZERO = "optimizer.step()", "optimizer.zero_grad()"
GAN_UPDATES = Exercise(
    "gan_updates",
    "several_optimizers",
    watch,
    solution,
    cases=[twice(EQUAL, 2), twice(EQUAL, 4, dirty=True), *(twice(RAGGED, n) for n in (1, 2, 4, 100))],
    edits=[
        *edits("orphan-parameters/no-grad", ZERO, f"{ZERO}\ng.requires_grad_(False)\nd.requires_grad_(False)"),
        *edits("wrong-order", LOSSES, "((g_loss, g_optimizer), (d_loss, d_optimizer))"),
        *edits("wrong-order", STEP, "loss is g_loss and [each.step() for each in (d_optimizer, g_optimizer)]"),
    ],
    channels={
        **{FOREIGN.format(name): "foreign-gradients" for name in ("discriminator", "generator")},
        LEARN: "orphan-parameters",
    },
)
