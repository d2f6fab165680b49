"""Answers to "step_in_backward": optimizers that step inside backward, once per window."""

from collections import Counter

import torch

from answers import outcomes, right, wrong
from course_utils import mlp


@right("step_in_backward")
def with_a_closure_each(model, make_optimizer, n):
    def attach(p):
        optimizer = make_optimizer([p])
        arrived = 0

        def hook(p):
            nonlocal arrived
            arrived += 1
            if arrived == n:
                optimizer.step()
                optimizer.zero_grad()
                arrived = 0

        return p.register_post_accumulate_grad_hook(hook)

    handles = [attach(p) for p in model.parameters() if p.requires_grad]

    def remove():
        for handle in handles:
            handle.remove()

    return remove


@right("step_in_backward")
def with_one_hook_for_all(model, make_optimizer, n):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizers = {p: make_optimizer([p]) for p in trained}
    arrived = Counter()

    def hook(p):
        arrived[p] += 1
        if arrived[p] % n == 0:
            optimizers[p].step()
            p.grad = None

    handles = [p.register_post_accumulate_grad_hook(hook) for p in trained]
    return lambda: [handle.remove() for handle in handles]


class Stepper:
    def __init__(self, p, make_optimizer, n):
        self.optimizer, self.left, self.n = make_optimizer([p]), n, n
        self.handle = p.register_post_accumulate_grad_hook(self)

    def __call__(self, p):
        self.left -= 1
        if not self.left:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.left = self.n


@right("step_in_backward")
def with_a_class(model, make_optimizer, n):
    steppers = [Stepper(p, make_optimizer, n) for p in model.parameters() if p.requires_grad]

    def remove():
        while steppers:
            steppers.pop().handle.remove()

    return remove


@right("step_in_backward")
def with_one_optimizer_at_the_last_arrival(model, make_optimizer, n):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, arrived = make_optimizer(trained), []

    def hook(p):
        arrived.append(p)
        if len(arrived) == n * len(trained):
            optimizer.step()
            optimizer.zero_grad()
            arrived.clear()

    handles = [p.register_post_accumulate_grad_hook(hook) for p in trained]
    return lambda: [handle.remove() for handle in handles]


@right("step_in_backward")
def with_names(model, make_optimizer, n):
    calls, handles = {}, []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue

        def hook(p, name=name, optimizer=make_optimizer(iter([p]))):  # noqa: B008
            calls[name] = calls.get(name, 0) + 1
            if calls[name] == n:
                del calls[name]
                optimizer.step()
                optimizer.zero_grad()

        handles.append(p.register_post_accumulate_grad_hook(hook))

    def remove():
        for handle in handles:
            handle.remove()

    return remove


def built_from(step, choose=lambda model: model.parameters(), state=dict):
    """An answer whose hook is `step(p, optimizer, state, n, make_optimizer)`, with a state for each parameter."""

    def answer(model, make_optimizer, n):
        def attach(p):
            optimizer, own = make_optimizer([p]), state()
            return p.register_post_accumulate_grad_hook(lambda p: step(p, optimizer, own, n, make_optimizer))

        handles = [attach(p) for p in choose(model) if p.requires_grad]
        return lambda: [handle.remove() for handle in handles]

    return answer


def window_is_full(own, n):
    own["arrived"] = own.get("arrived", 0) + 1
    return own["arrived"] % n == 0


def at_every_micro_batch(p, optimizer, own, n, _make):
    optimizer.step()
    optimizer.zero_grad()


def never_zeroes(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.step()


def zeroes_every_micro_batch(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.step()
    optimizer.zero_grad()


def zeroes_before_the_step(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.zero_grad()
        optimizer.step()


def only_zeroes_at_the_end(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.zero_grad()


def only_counts(p, optimizer, own, n, _make):
    window_is_full(own, n)


def divides_again(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        p.grad /= n
        optimizer.step()
        optimizer.zero_grad()


def makes_an_optimizer_each_time(p, optimizer, own, n, make_optimizer):
    if window_is_full(own, n):
        make_optimizer([p]).step()
        p.grad = None


def writes_zeros(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def full_windows_only_once(p, optimizer, own, n, _make):
    own["arrived"] = own.get("arrived", 0) + 1
    if own["arrived"] >= n:
        optimizer.step()
        optimizer.zero_grad()


def clips(p, optimizer, own, n, _make):
    p.grad.clamp_(-1e-3, 1e-3)
    if window_is_full(own, n):
        optimizer.step()
        optimizer.zero_grad()


def counts_for_all(model, make_optimizer, n):
    common = {}
    return built_from(at_every_full_window, state=lambda: common)(model, make_optimizer, n)


def at_every_full_window(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.step()
        optimizer.zero_grad()


def one_optimizer_in_every_hook(model, make_optimizer, n):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, arrived = make_optimizer(trained), Counter()

    def hook(p):
        arrived[p] += 1
        if arrived[p] % n == 0:
            optimizer.step()
            p.grad = None

    handles = [p.register_post_accumulate_grad_hook(hook) for p in trained]
    return lambda: [handle.remove() for handle in handles]


def removes_one_hook(model, make_optimizer, n):
    made = []
    step = built_from(at_every_full_window, choose=lambda model: list(model.parameters())[1:])
    made.append(built_from(at_every_full_window, choose=lambda model: list(model.parameters())[:1]))
    made[0](model, make_optimizer, n)
    return step(model, make_optimizer, n)


def returning(what):
    def answer(model, make_optimizer, n):
        with_names(model, make_optimizer, n)
        return what

    return answer


def removes_all_hooks_there_are(model, make_optimizer, n):
    with_names(model, make_optimizer, n)

    def remove():
        for p in model.parameters():
            (p._post_accumulate_grad_hooks or {}).clear()

    return remove


def hooks_on_all(model, make_optimizer, n):
    handles = []
    for p in model.parameters():
        own, optimizer = {}, make_optimizer([p])

        def hook(p, own=own, optimizer=optimizer):
            at_every_full_window(p, optimizer, own, n, None)

        handles.append(p.register_post_accumulate_grad_hook(hook))
    return lambda: [handle.remove() for handle in handles]


def a_tensor_hook(model, make_optimizer, n):
    handles = []
    for p in model.parameters():
        if p.requires_grad:
            own, optimizer = {}, make_optimizer([p])

            def hook(_grad, p=p, own=own, optimizer=optimizer):
                at_every_full_window(p, optimizer, own, n, None)

            handles.append(p.register_hook(hook))
    return lambda: [handle.remove() for handle in handles]


WRONG = {
    "not-attempted": [lambda *_: None, lambda *_: ..., lambda *_: lambda: None],
    "per-micro-batch": [built_from(at_every_micro_batch)],
    "shared-counter": [counts_for_all],
    "irregular-window": [built_from(full_windows_only_once)],
    "stale-gradients": [built_from(never_zeroes)],
    "discarded-gradients": [
        built_from(zeroes_every_micro_batch),
        built_from(zeroes_before_the_step),
        built_from(only_zeroes_at_the_end),
    ],
    "leftover-gradients": [built_from(only_counts)],
    "loss-scale": [built_from(divides_again)],
    "forgets-state": [built_from(makes_an_optimizer_each_time)],
    "zeros-kept": [built_from(writes_zeros)],
    "orphan-parameters": [built_from(at_every_full_window, choose=lambda model: model[0].parameters())],
    "shared-optimizer": [one_optimizer_in_every_hook],
    "frozen-parameters": [hooks_on_all],
    "leaks-hooks": [returning(None), returning(...), returning(lambda: None), removes_one_hook],
    "removes-foreign-hooks": [removes_all_hooks_there_are],
    "wrong-type": [returning([]), returning(3), returning("remove")],
    "wrong-value": [built_from(clips), a_tensor_hook],
    "raises": [
        lambda: None,
        lambda model, make_optimizer, n: 1 / 0,
        lambda model, make_optimizer, n: make_optimizer(model[0].weight),
        built_from(lambda *_: 1 / 0),
        lambda model, make_optimizer, n: model.no_such_thing,
        lambda model, make_optimizer, n: make_optimizer([]),
    ],
    "not-a-function": [None, 3],
}


for bug, answers in WRONG.items():
    for answer in answers:
        wrong("step_in_backward", bug)(answer)

wrong(
    "step_in_backward",
    "shared-counter",
    says="N = 3, SGD with momentum: after micro-batch 1 of window 1: these parameters have moved",
)(counts_for_all)
wrong("step_in_backward", "shared-counter", says="a count of its own")(counts_for_all)


@outcomes("step_in_backward")
def outcomes_of_step_in_backward(answer):
    """The weights after each backward, with the hooks and when they are removed, and what is left in `.grad`."""
    for n, adam in ((1, False), (2, True), (3, False)):
        yield lambda n=n, adam=adam: trained(answer, n, adam)


def trained(answer, n, adam):
    generator = torch.Generator().manual_seed(n)
    torch.manual_seed(n)
    model = mlp(3, 4, 2).double()
    model[2].weight.requires_grad_(False)
    make = torch.optim.Adam if adam else torch.optim.SGD
    options = {"lr": 0.01} if adam else {"lr": 0.1, "momentum": 0.9}
    remove, found = answer(model, lambda parameters: make(parameters, **options), n), []
    for k in range(3 * n + 1):
        if k == 3 * n:
            remove()
        (model(torch.randn(4, 3, generator=generator, dtype=torch.float64)).square().mean() / n).backward()
        for p in model.parameters():
            found += [*p.flatten().tolist(), -1.0 if p.grad is None else float(p.grad.norm())]
    return found
