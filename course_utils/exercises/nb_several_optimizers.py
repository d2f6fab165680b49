"""The exercise of *several optimizers*: a GAN whose two updates use their own gradients."""

from dataclasses import replace

from course_utils.exercises.judging import compare, exercise
from course_utils.exercises.loop import Loop, twice
from course_utils.loops import windows

EQUAL, RAGGED = (2,) * 6, (4, 2, 1, 3, 2)
CASES = [twice(EQUAL, 2), twice(EQUAL, 4, dirty=True), *(twice(RAGGED, n) for n in (1, 2, 4, 100))]
FOREIGN, ORDER = "updates with gradients of the other's loss", "losses that met the other's wrong update"
LEARN = "both networks learn at the end"
CHANNELS = {
    FOREIGN: ("foreign-gradients", "", "Which backward pass ran between a network's zeroing and its own first one?"),
    ORDER: ("wrong-order", "", "What comes too early in a window: a forward pass, a backward pass, or a step?"),
    LEARN: ("orphan-parameters", "", "Which network is frozen when its backward pass runs, and which at the end?"),
}


def solution(g, d, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        total = sum(len(batch) for batch in window)
        for loss, optimizer in ((d_loss, d_optimizer), (g_loss, g_optimizer)):
            optimizer.zero_grad()
            for batch in window:
                (loss(batch) * len(batch) / total).backward()
            optimizer.step()


class Net(Loop):
    """One of the two networks; its loss goes through the other one, which should be `ahead` by so many updates."""

    def __init__(self, case, name, ahead):
        super().__init__(case, losses=2)
        self.name, self.ahead, self.early = name, ahead, set()
        self.updates.name = f"the {name}: "

    def loss(self, batch):
        loss = self.loss_fn(self.model, batch) + self.other.model(batch + len(self.samples)).mean()
        k = len(self.updates.rows)
        if loss.requires_grad and len(self.other.updates.rows) != k + self.ahead:
            loss.register_hook(lambda _: self.early.add(f"{self.name} {k + 1}"))
        return loss

    def own(self):
        """The updates without what came from the other's loss."""
        own = len(self.samples)
        return replace(self.updates, owner=self.updates.owner[:own], rows=[row[:own] for row in self.updates.rows])

    def foreign(self):
        own = len(self.samples)
        return [f"{self.name} {k}" for k, row in enumerate(self.updates.rows, start=1) if row[own:].any()]


def watch(answer, case):
    g, d = Net(case, "generator", ahead=1), Net(case, "discriminator", ahead=0)
    g.other, d.other = d, g

    def call(batches):
        d.k = g.k
        return answer(g.model, d.model, batches, g.loss, d.loss, g.optimizer, d.optimizer, case.n)

    how = g.run(call)["input"]
    learn = all(p.requires_grad for net in (g, d) for p in net.model.parameters())
    seen = {"d": d.own(), "g": g.own(), FOREIGN: d.foreign() + g.foreign(), ORDER: sorted(d.early | g.early)}
    return {**seen, LEARN: learn, "input": how}


@exercise
def gan_updates(answer):
    compare(watch, answer, solution, CASES, CHANNELS)
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, networks that were used before: "
        "each update holds its own loss's gradient and nothing else."
    )
