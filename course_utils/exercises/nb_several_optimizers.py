"""The exercise of *several optimizers*: a GAN whose two updates use their own gradients."""

from course_utils.exercises.judging import Mistake, compare, exercise
from course_utils.exercises.loop import Loop, twice
from course_utils.loops import train_epoch, windows

EQUAL, RAGGED = (2,) * 6, (4, 2, 1, 3, 2)
CASES = [twice(EQUAL, n=2), twice(EQUAL, n=4, old_gradient=True), *(twice(RAGGED, n=n) for n in (1, 2, 4, 100))]


def solution(g, d, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        for net, loss, optimizer in ((d, d_loss, d_optimizer), (g, g_loss, g_optimizer)):
            train_epoch(net, window, lambda _, batch, loss=loss: loss(batch), optimizer, n, len)


class Net(Loop):
    """A network whose loss reaches the other one too, and depends on what both hold."""

    def __init__(self, case, name):
        super().__init__(case)
        self.name, self.last = f" of the {name}", self.model.net[-1].bias

    def loss(self, batch):
        reaches = self.other.model.weight[-1] + (self.last * self.other.last).sum()
        return self.loss_fn(self.model, batch) + reaches

    def compare(self, want):
        try:
            super().compare(want)
        except Mistake as mistake:
            if mistake.verdict.bug == "wrong-value":  # perhaps since the other one's update is wrong, which says more
                Loop.compare(self.other, want.other)
            raise


def watch(answer, case):
    g, d = Net(case, "generator"), Net(case, "discriminator")
    g.other, d.other = d, g

    def call(batches):
        d.k = g.k
        answer(g.model, d.model, batches, g.loss, d.loss, g.optimizer, d.optimizer, case.n)

    g.run(call)
    learn = [p.requires_grad for net in (g, d) for p in net.model.parameters()]
    return {"d": d, "g": g, "both networks learn at the end": all(learn)}


@exercise("N = 1, 2, 4 and 100, short windows, networks that were used before: each update holds its own gradient.")
def gan_updates(answer):
    compare(watch, answer, solution, CASES)
