"""Answers to "fold_into_momentum": SGD with momentum that accumulates in its own buffers."""

import torch
from torch.optim import SGD

from answers import right, wrong


@right("fold_into_momentum")
def decays_at_the_first_piece(model, lr, momentum, weight_decay):
    buffers, arrived = {}, []

    def fold(p):
        if all(p is not other for other in arrived):
            arrived.append(p)
            if p in buffers:
                buffers[p].mul_(momentum)
            else:
                buffers[p] = torch.zeros_like(p)
            buffers[p].add_(p, alpha=weight_decay)
        buffers[p].add_(p.grad)
        p.grad = None

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(fold)

    def step():
        with torch.no_grad():
            while arrived:
                p = arrived.pop()
                p -= lr * buffers[p]

    return step


class Folder:
    def __init__(self, p, lr, momentum, weight_decay):
        self.p, self.buffer, self.used = p, torch.zeros_like(p), False
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        p.register_post_accumulate_grad_hook(self)

    def __call__(self, p):
        self.buffer += p.grad
        p.grad = None
        self.used = True

    def step(self):
        if self.used:
            self.buffer += self.weight_decay * self.p.detach()
            self.p.data -= self.lr * self.buffer
            self.buffer *= self.momentum
            self.used = False


@right("fold_into_momentum")
def with_a_class(model, lr, momentum, weight_decay):
    folders = [Folder(p, lr, momentum, weight_decay) for p in model.parameters() if p.requires_grad]
    return lambda: [folder.step() for folder in folders]


@right("fold_into_momentum")
def in_the_state_of_an_optimizer(model, lr, momentum, weight_decay):
    """The buffers are SGD's own; at the end of a window each stands in for the gradient of an SGD without momentum."""
    trained = [p for p in model.parameters() if p.requires_grad]
    state = SGD(trained, lr=lr).state

    def fold(p):
        buffer = state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        buffer.add_(p.grad)
        p.grad, state[p]["arrived"] = None, True

    for p in trained:
        p.register_post_accumulate_grad_hook(fold)

    @torch.no_grad()
    def step():
        for p in trained:
            if state[p].pop("arrived", False):
                buffer = state[p]["momentum_buffer"]
                p.add_(buffer.add_(p, alpha=weight_decay), alpha=-lr)
                buffer.mul_(momentum)

    return step


@right("fold_into_momentum")
def keeps_views_of_the_weights(model, lr, momentum, weight_decay):
    """A view is a tensor of a weight's size, but no memory of its own."""
    folders = [Folder(p, lr, momentum, weight_decay) for p in model.parameters() if p.requires_grad]
    views = [folder.p.detach() for folder in folders]

    def step():
        for folder, view in zip(folders, views, strict=True):
            if folder.used:
                folder.buffer += weight_decay * view
                view -= lr * folder.buffer
                folder.buffer *= momentum
                folder.used = False

    return step


def keeps_the_gradients(model, lr, momentum, weight_decay):
    optimizer = SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return step


def keeps_the_sums(model, lr, momentum, weight_decay):
    """As many gradients as ever, in a dictionary instead of .grad."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, sums = SGD(trained, lr, momentum, weight_decay=weight_decay), {}

    def hook(p):
        sums[p] = sums[p] + p.grad if p in sums else p.grad
        p.grad = None

    for p in trained:
        p.register_post_accumulate_grad_hook(hook)

    def step():
        for p, total in sums.items():
            p.grad = total
        optimizer.step()
        optimizer.zero_grad()
        sums.clear()

    return step


def folding(fold=None, update=None, choose=lambda p: p.requires_grad, begin=lambda p: torch.zeros_like(p)):
    """The reference solution with another hook, `fold(p, own)`, or another update, `update(p, own, ...)`."""

    def answer(model, lr, momentum, weight_decay):
        trained = [p for p in model.parameters() if choose(p)]
        own = {p: {"b": begin(p), "arrived": 0} for p in trained}

        def hook(p):
            own[p]["arrived"] += 1
            (fold or add)(p, own[p], momentum=momentum, weight_decay=weight_decay, lr=lr)

        for p in trained:
            p.register_post_accumulate_grad_hook(hook)

        @torch.no_grad()
        def step():
            for p in trained:
                (update or as_sgd)(p, own[p], lr, momentum, weight_decay)
                own[p]["arrived"] = 0

        return step

    return answer


def add(p, own, **_):
    own["b"] += p.grad
    p.grad = None


def as_sgd(p, own, lr, momentum, weight_decay):
    if own["arrived"]:
        own["b"] += weight_decay * p
        p -= lr * own["b"]
        own["b"] *= momentum


right("fold_into_momentum")(folding())


def decays_each_piece(p, own, momentum, **_):
    own["b"] = momentum * own["b"] + p.grad
    p.grad = None


def without_decay(p, own, lr, momentum, weight_decay):
    if own["arrived"]:
        own["b"] += weight_decay * p
        p -= lr * own["b"]


def update_only(p, own, lr, momentum, weight_decay):
    without_decay(p, own, lr, 0, weight_decay)


def clears(p, own, lr, momentum, weight_decay):
    without_decay(p, own, lr, 0, weight_decay)
    own["b"].zero_()


def without_weight_decay(p, own, lr, momentum, weight_decay):
    as_sgd(p, own, lr, momentum, 0.0)


def weight_decay_per_piece(p, own, weight_decay, **_):
    own["b"] += p.grad + weight_decay * p.detach()
    p.grad = None


def decoupled(p, own, lr, momentum, weight_decay):
    if own["arrived"]:
        p *= 1 - lr * weight_decay
        as_sgd(p, own, lr, momentum, 0.0)


def moves_idle(p, own, lr, momentum, weight_decay):
    own["b"] += weight_decay * p
    p -= lr * own["b"]
    own["b"] *= momentum


def idle_loses_momentum(p, own, lr, momentum, weight_decay):
    as_sgd(p, own, lr, momentum, weight_decay)
    if not own["arrived"]:
        own["b"] *= momentum


def steps_in_backward(p, own, lr, momentum, weight_decay):
    add(p, own)
    as_sgd(p.data, own, lr, momentum, weight_decay)


def does_nothing(p, own, *_):
    pass


def returns(what):
    return lambda *_: what


def folds_only_weights(model, lr, momentum, weight_decay):
    return folding(choose=lambda p: p.requires_grad and p.dim() > 1)(model, lr, momentum, weight_decay)


def thaws(model, lr, momentum, weight_decay):
    return folding()(model.requires_grad_(), lr, momentum, weight_decay)


def overwrites(p, own, **_):
    """Only the last piece of a window is added."""
    own["b"] = own["b"] + p.grad if not own.get("seen") else own["b"]
    own["seen"] = True
    p.grad = None


for bug, answers in {
    "not-attempted": [returns(None), returns(...)],
    "wrong-type": [returns(3), returns("step")],
    "keeps-gradients": [keeps_the_gradients],
    "second-buffer": [keeps_the_sums],
    "no-update": [returns(lambda: None), folding(update=does_nothing)],
    "steps-in-backward": [folding(steps_in_backward, does_nothing)],
    "decays-each-piece": [folding(decays_each_piece, without_decay)],
    "never-decays": [folding(update=without_decay), folding(update=update_only)],
    "forgets-momentum": [folding(update=clears)],
    "no-weight-decay": [folding(update=without_weight_decay)],
    "decays-weights-each-piece": [folding(weight_decay_per_piece, without_weight_decay)],
    "decoupled-weight-decay": [folding(update=decoupled)],
    "idle-parameter": [folding(update=moves_idle), folding(update=idle_loses_momentum)],
    "frozen-parameters": [folding(choose=lambda p: True), thaws],
    "wrong-value": [folds_only_weights, folding(overwrites)],
    "raises": [lambda: None, lambda *_: 1 / 0],
    "not-a-function": [None, 3],
}.items():
    for answer in answers:
        wrong("fold_into_momentum", bug)(answer)


def halves(p, own, **_):
    own["b"] += p.grad / 3
    p.grad = None


def triples(p, own, **_):
    own["b"] += p.grad * 3
    p.grad = None


wrong("fold_into_momentum", "loss-scale")(folding(halves))
wrong("fold_into_momentum", "keeps-gradients")(keeps_the_gradients)
