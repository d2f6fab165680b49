"""Updates that no torch optimizer makes, and gradients that are handed over: judged like any other."""

import copy

import torch
from runs import data, net, update, with_sgd
from table import row, said
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam


@torch.no_grad()
def in_place(p, change):
    p -= change


def data_add_(p, change):
    p.data.add_(change, alpha=-1)


def new_data(p, change):
    p.data = p.data - change


@torch.no_grad()
def foreach(p, change):
    torch._foreach_sub_([p], [change])


class ByHand:
    """An optimizer of another library: not one of torch's, with a step and a zero_grad of its own."""

    def __init__(self, parameters, rate=0.1, momentum=0.0, write=data_add_):
        self.parameters = list(parameters)
        self.rate, self.momentum, self.write = rate, momentum, write
        self.sums = [torch.zeros_like(p) for p in self.parameters]

    def step(self):
        for p, total in zip(self.parameters, self.sums, strict=True):
            if p.grad is not None:
                total.mul_(self.momentum).add_(p.grad)
                self.write(p, self.rate * total)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def train(n=4, divide=True, zero=True, count=12, early=False, **how):
    model = net()
    optimizer = ByHand(model.parameters(), **how)
    for i, (x, y) in enumerate(data(count)):
        if early:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss / n if divide else loss).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            if zero:
                optimizer.zero_grad()


HOW = {
    "in place": {"write": in_place},
    "through data": {"write": data_add_},
    "with new data": {"write": new_data},
    "with foreach": {"write": foreach},
    "with momentum": {"momentum": 0.9},
}
for name, how in HOW.items():
    row(f"updates by hand {name}", lambda how=how: train(**how), "")
    row(f"updates by hand {name} without zeroing", lambda how=how: train(zero=False, **how), "stale-gradients", "error")
row("leftovers of updates by hand", lambda: train(count=14), "", "error")
row("undivided losses and updates by hand, which may divide", lambda: train(divide=False), "", "undecided")
row("zeroing in every micro-batch by hand", lambda: train(count=16, early=True), "discarded-gradients", "error")


def two_numbers(zero):
    w, b = torch.randn((), requires_grad=True), torch.zeros((), requires_grad=True)
    for x, _ in data(12):
        F.mse_loss(w * x + b, 2 * x + 1).backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            b -= 0.1 * b.grad
        if zero:
            w.grad.zero_()
            b.grad.zero_()


row("two numbers that are no parameters of a module", lambda: two_numbers(True), "")
row("two numbers that are never zeroed", lambda: two_numbers(False), "", "error")


def worker(zero, alias):
    """Each worker of A3C. `zero_grad()` of the shared model's optimizer lets go of the local gradients only."""
    shared, local = net(), net()
    optimizer = Adam(shared.parameters(), lr=0.01)
    for x, y in data(8):
        local.load_state_dict(shared.state_dict())
        optimizer.zero_grad()
        if zero:
            local.zero_grad()
        F.cross_entropy(local(x), y).backward()
        nn.utils.clip_grad_norm_(local.parameters(), 1.0)
        for theirs, ours in zip(shared.parameters(), local.parameters(), strict=True):
            theirs._grad = ours.grad if alias else ours.grad.clone()
        optimizer.step()


for alias in (True, False):
    how = "shared" if alias else "copied"
    row(f"gradients of a local model that are {how}", lambda alias=alias: worker(True, alias), "")
    row(f"the same, {how} and never zeroed", lambda alias=alias: worker(False, alias), "stale-gradients", "error")


def masters(zero):
    model = net().to(torch.bfloat16)
    weights = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = SGD(weights, lr=0.1)
    for x, y in data(6):
        (F.cross_entropy(model(x.bfloat16()), y) * 8).backward()
        for master, p in zip(weights, model.parameters(), strict=True):
            master.grad = p.grad.float() / 8
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(weights, model.parameters(), strict=True):
                p.copy_(master)
        if zero:
            model.zero_grad()


row("master weights in another type", lambda: masters(True), "stale-gradients")
row("master weights in another type that are never zeroed", lambda: masters(False), "stale-gradients", "error")


# What only looks like an update


@said("", "undecided")
def a_target_network_that_receives_gradients_and_follows_another():
    online = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    target, optimizer = copy.deepcopy(online), Adam(online.parameters(), 0.01)
    for x, _ in data(20):
        optimizer.zero_grad()
        F.mse_loss(online(x), 1 + 0.9 * target(x.roll(1, 0))).backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.lerp_(new, 0.01)


@said("", "advice")
def weights_that_are_clamped_after_each_update_of_others():
    model, other = net(), net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data(12):
        F.cross_entropy(model(x) + other(x), y).backward()
        update(optimizer)
        with torch.no_grad():
            for p in other.parameters():
                p.clamp_(-0.1, 0.1)


@said("")
def models_that_live_for_one_backward_call_and_are_read():
    model, optimizer = with_sgd()
    for x, y in data(12):
        ahead = copy.deepcopy(model)
        F.cross_entropy(ahead(x), y).backward()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p, other in zip(model.parameters(), ahead.parameters(), strict=True):
            p.grad += 0.1 * other.grad
        optimizer.step()


class InHooks(torch.optim.Optimizer):
    """Updates each parameter as soon as its gradient is there, in two backward calls: the first is for the norm."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.norms = None
        for p in self.param_groups[0]["params"]:
            p.register_hook(self.update)

    def update(self, _):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                grad, p.grad = p.grad, None
                if self.norms is None:
                    p.data.sub_(0.1 * grad)
                else:
                    self.norms.append(grad.norm())

    def run(self, loss):
        self.norms = []
        loss.backward(retain_graph=True)
        self.update(None)
        self.norms = None
        loss.backward()
        self.update(None)


@said("", "undecided")
def an_optimizer_that_updates_in_hooks():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = InHooks(model.parameters())
    for x, y in data(12):
        optimizer.run(F.cross_entropy(model(x), y))


@said("")
def an_optimizer_that_is_made_late_takes_its_parameters_over():
    model = net()
    F.cross_entropy(model(data(1)[0][0]), data(1)[0][1]).backward()  # to see that it works
    model.zero_grad()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in data():
        F.cross_entropy(model(x), y).backward()
        update(optimizer)


# Gradients that are written over


class Replayed(torch.autograd.Function):
    """Its backward fills one tensor, always the same, as a CUDA graph does."""

    static = torch.zeros(3)

    @staticmethod
    def forward(ctx, w, slope):
        ctx.slope = slope
        return (w * slope).sum()

    @staticmethod
    def backward(ctx, gradient):
        return Replayed.static.fill_(ctx.slope).mul_(gradient).detach(), None


def replayed(slopes, memory=None):
    w = nn.Parameter(torch.ones(3))
    w.grad = memory
    optimizer = SGD([w], lr=0.1)
    for _ in range(3):
        for slope in slopes:
            Replayed.apply(w, slope).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=memory is None)


row("gradients in one memory", lambda: replayed((1.0, 10.0, 100.0)), "discarded-gradients", "error")
row("gradients in memory of their own", lambda: replayed((1.0, 10.0, 100.0), torch.zeros(3)), "discarded-gradients")
row("gradients in one memory without accumulation", lambda: replayed((1.0,)), "discarded-gradients")
