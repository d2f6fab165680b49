"""The exercise of *several optimizers*: a GAN whose two updates use their own gradients."""

import torch
from torch import nn

from course_utils.exercises.judging import compare, exercise, same
from course_utils.exercises.loop import Loop, twice
from course_utils.loops import train_epoch, windows

EQUAL, RAGGED = (2,) * 6, (4, 2, 1, 3, 2)
CASES = [twice(EQUAL, n=2), twice(EQUAL, n=4, old_gradient=True), *(twice(RAGGED, n=n) for n in (1, 2, 4, 100))]


def solution(g, d, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        for net, loss, optimizer in ((d, d_loss, d_optimizer), (g, g_loss, g_optimizer)):
            train_epoch(net, window, lambda _, batch, loss=loss: loss(batch), optimizer, n, len)


class Net(Loop):
    """A network whose loss goes through the other one, which should be `ahead` in updates."""

    def __init__(self, case, name, ahead):
        super().__init__(case)
        self.name, self.ahead, self.early, self.foreign = f" of the {name}", ahead, [], []
        self.model.inlet = self.inlet = nn.Parameter(torch.zeros(1))  # where the other's loss comes in
        self.optimizer.add_param_group({"params": [self.inlet]})

    def loss(self, batch):
        loss = self.loss_fn(self.model, batch) + self.other.inlet.sum()
        k = len(self.steps) + 1
        if loss.requires_grad and len(self.other.steps) + 1 != k + self.ahead:
            loss.register_hook(lambda _: self.early.append(f"loss {k}{self.name}"))
        return loss

    def stepped(self, *_):
        super().stepped()
        if self.inlet.grad is not None and self.inlet.grad.any():
            self.foreign.append(f"update {len(self.steps)}{self.name}")


def watch(answer, case):
    g, d = Net(case, "generator", ahead=1), Net(case, "discriminator", ahead=0)
    g.other, d.other = d, g

    def call(batches):
        d.k = g.k
        answer(g.model, d.model, batches, g.loss, d.loss, g.optimizer, d.optimizer, case.n)

    g.run(call)
    hint = "Which backward pass ran between a network's zeroing and its own first one?"
    same("updates with gradients of the other's loss", d.foreign + g.foreign, [], ("foreign-gradients", "", hint))
    hint = "What comes too early in a window: a forward pass, a backward pass, or a step?"
    same("losses that met the other's wrong update", d.early + g.early, [], ("wrong-order", "", hint))
    learn = all(p.requires_grad for net in (g, d) for p in net.model.parameters())
    hint = "Which network is frozen when its backward pass runs, and which at the end?"
    same("both networks learn at the end", learn, True, ("orphan-parameters", "", hint))
    return {"d": d, "g": g}


@exercise
def gan_updates(answer):
    compare(watch, answer, solution, CASES)
    return "N = 1, 2, 4 and 100, short windows, networks that were used before: each update holds its own gradient."
