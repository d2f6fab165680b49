"""Answers to "step_in_backward": optimizers that step inside backward, once per window."""

from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count, cycle

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
    "wrong-value": [a_tensor_hook],
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


# More styles of right answers.


@right("step_in_backward")
def with_an_attribute(model: torch.nn.Module, make_optimizer, n: int):
    """Keeps the count on the parameter itself."""
    with ExitStack() as stack:
        for p in filter(lambda p: p.requires_grad, model.parameters()):
            p.optimizer, p.arrived = make_optimizer([p]), 0

            def hook(p):
                p.arrived = (p.arrived + 1) % n
                if p.arrived == 0:
                    p.optimizer.step()
                    p.optimizer.zero_grad(set_to_none=True)

            stack.callback(p.register_post_accumulate_grad_hook(hook).remove)
        return stack.pop_all().close


@right("step_in_backward")
def with_partial(model, make_optimizer, n):
    def hook(optimizer, ends, p):
        if next(ends):
            optimizer.step()
            del p.grad
            p.grad = None

    handles = {
        name: p.register_post_accumulate_grad_hook(
            partial(hook, make_optimizer([p]), cycle([False] * (n - 1) + [True]))
        )
        for name, p in model.named_parameters()
        if p.requires_grad
    }

    def remove():
        for name in list(handles):
            handles.pop(name).remove()

    return remove


@right("step_in_backward")
def with_lists(model, make_optimizer, n):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizers = [make_optimizer([p]) for p in trained]
    counts = torch.zeros(len(trained), dtype=torch.int)
    handles = []
    for i in range(len(trained)):

        def hook(_, i=i):
            counts[i] += 1
            if counts[i] >= n:
                optimizers[i].step(lambda: None)
                optimizers[i].zero_grad()
                counts[i] = 0

        handles.append(trained[i].register_post_accumulate_grad_hook(hook))
    return lambda: {handle.remove() for handle in handles}


@right("step_in_backward")
def with_the_accumulating_node(model, make_optimizer, n):
    """As before PyTorch 2.1: a hook of the node that adds to .grad, which has to be kept alive."""
    nodes, handles = [], []

    def attach(p):
        node, optimizer, arrived = p.view_as(p).grad_fn.next_functions[0][0], make_optimizer([p]), count(1)

        def hook(*_):
            if next(arrived) % n == 0:
                optimizer.step()
                optimizer.zero_grad()

        nodes.append(node)
        handles.append(node.register_hook(hook))

    for p in model.parameters():
        if p.requires_grad:
            attach(p)

    def remove():
        while nodes:
            handles.pop().remove()
            nodes.pop()

    return remove


@right("step_in_backward")
def with_a_generator(model, make_optimizer, n):
    def stepper(p):
        optimizer = make_optimizer([p])
        while True:
            for _ in range(n):
                yield
            optimizer.step()
            p.grad = None

    handles = []
    for p in model.parameters():
        if p.requires_grad:
            steps = stepper(p)
            next(steps)
            handles.append(p.register_post_accumulate_grad_hook(lambda _, steps=steps: next(steps)))
    return lambda: [handle.remove() for handle in handles]


# More wrong answers.


def steps_if(is_time, finish=lambda p, optimizer, own, n: optimizer.zero_grad()):
    """The hook steps and zeroes if `is_time(arrived, n)`, where `arrived` counts from 1."""

    def step(p, optimizer, own, n, _make):
        own["arrived"] = own.get("arrived", 0) + 1
        if is_time(own["arrived"], n):
            optimizer.step()
            finish(p, optimizer, own, n)

    return built_from(step)


def multiplies_by_n(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        p.grad *= n
        optimizer.step()
        optimizer.zero_grad()


def steps_twice(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad()


def zeroes_in_place(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        optimizer.step()
        p.grad.zero_()


def rounds(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        p.grad = p.grad.half().double()
        optimizer.step()
        optimizer.zero_grad()


def divides_each_sum(p, optimizer, own, n, _make):
    """Divides the running sum in every backward pass, so that early micro-batches are divided several times."""
    p.grad /= n
    if window_is_full(own, n):
        optimizer.step()
        optimizer.zero_grad()


def limits_the_norm(p, optimizer, own, n, _make):
    if window_is_full(own, n):
        torch.nn.utils.clip_grad_norm_([p], 1.0)
        optimizer.step()
        optimizer.zero_grad()


def zeroes_at_the_next_arrival(p, optimizer, own, n, _make):
    """Too late: the first gradient of the new window has arrived."""
    if window_is_full(own, n):
        optimizer.step()
    if n > 1 and own["arrived"] % n == 1:
        optimizer.zero_grad()


def swallows_its_error(p, optimizer, own, n, _make):
    with suppress(Exception):
        if window_is_full(own, n):
            optimiser.step()  # noqa: F821
            optimizer.zero_grad()


def zeroes_the_whole_model(model, make_optimizer, n):
    def step(p, optimizer, own, n, _make):
        if window_is_full(own, n):
            optimizer.step()
            model.zero_grad()

    return built_from(step)(model, make_optimizer, n)


def uses_the_last_optimizer(model, make_optimizer, n):
    """Every hook sees the loop's variable, that is, the last optimizer."""
    arrived, handles = Counter(), []
    for p in model.parameters():
        if p.requires_grad:
            optimizer = make_optimizer([p])

            def hook(p):
                arrived[p] += 1
                if arrived[p] % n == 0:
                    optimizer.step()  # noqa: B023
                    optimizer.zero_grad()  # noqa: B023

            handles.append(p.register_post_accumulate_grad_hook(hook))
    return lambda: [handle.remove() for handle in handles]


def one_optimizer_for_each_window(model, make_optimizer, n):
    trained = [p for p in model.parameters() if p.requires_grad]
    arrived = []

    def hook(p):
        arrived.append(p)
        if len(arrived) == n * len(trained):
            make_optimizer(trained).step()
            model.zero_grad()
            arrived.clear()

    handles = [p.register_post_accumulate_grad_hook(hook) for p in trained]
    return lambda: [handle.remove() for handle in handles]


def counts_each_arrival_of_all(model, make_optimizer, n):
    """One count for all parameters, compared with n."""
    trained, arrived = [p for p in model.parameters() if p.requires_grad], count(1)
    optimizers = {p: make_optimizer([p]) for p in trained}

    def hook(p):
        if next(arrived) % n == 0:
            optimizers[p].step()
            optimizers[p].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(hook) for p in trained]
    return lambda: [handle.remove() for handle in handles]


def only_matrices(model, make_optimizer, n):
    matrices = built_from(at_every_full_window, choose=lambda model: [p for p in model.parameters() if p.dim() > 1])
    return matrices(model, make_optimizer, n)


def hooks_only_those_with_a_gradient(model, make_optimizer, n):
    chosen = built_from(
        at_every_full_window, choose=lambda model: [p for p in model.parameters() if p.grad is not None]
    )
    return chosen(model, make_optimizer, n)


def calls_remove(model, make_optimizer, n):
    return with_names(model, make_optimizer, n)()


def removes_the_last(model, make_optimizer, n):
    handle = None
    for p in model.parameters():
        if p.requires_grad:
            own, optimizer = {}, make_optimizer([p])
            handle = p.register_post_accumulate_grad_hook(
                lambda p, own=own, optimizer=optimizer: at_every_full_window(p, optimizer, own, n, None)
            )
    return handle.remove


def returns_the_handle(model, make_optimizer, n):
    return removes_the_last(model, make_optimizer, n).__self__


def thaws_everything(model, make_optimizer, n):
    return with_names(model.requires_grad_(), make_optimizer, n)


def returns_how_to_remove(model, make_optimizer, n):
    """A function that returns the function that removes the hooks, and is never called."""
    remove = with_names(model, make_optimizer, n)
    return lambda: remove


def zeroes_instead_of_removing(model, make_optimizer, n):
    with_names(model, make_optimizer, n)
    return model.zero_grad


def limits_the_norm_of_all(model, make_optimizer, n):
    def step(p, optimizer, own, n, _make):
        if window_is_full(own, n):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            p.grad = None

    return built_from(step)(model, make_optimizer, n)


def stops_with_a_flag(model, make_optimizer, n):
    """The hooks stay, and go on zeroing."""
    stopped = []

    def step(p, optimizer, own, n, _make):
        if window_is_full(own, n):
            if not stopped:
                optimizer.step()
            optimizer.zero_grad()

    built_from(step)(model, make_optimizer, n)
    return lambda: stopped.append(True)


def stays_with_a_flag(model, make_optimizer, n):
    """The hooks stay and do nothing, but they are still called."""
    stopped = []

    def step(p, optimizer, own, n, _make):
        if not stopped and window_is_full(own, n):
            optimizer.step()
            optimizer.zero_grad()

    built_from(step)(model, make_optimizer, n)
    return lambda: stopped.append(True)


def updates_by_hand(model, make_optimizer, n):
    def step(p, optimizer, own, n, _make):
        if window_is_full(own, n):
            p.data -= 0.1 * p.grad
            p.grad = None

    return built_from(step)(model, make_optimizer, n)


def one_hook_for_all(model, make_optimizer, n):
    """Steps all parameters when the gradient of the last layer, the first to arrive, is there."""
    own, optimizer = {}, make_optimizer([p for p in model.parameters() if p.requires_grad])
    last = list(model.parameters())[-1]
    handle = last.register_post_accumulate_grad_hook(lambda p: at_every_full_window(p, optimizer, own, n, None))
    return handle.remove


for bug, answers in {
    "irregular-window": [
        steps_if(lambda arrived, n: arrived % n == 1 or n == 1),
        steps_if(lambda arrived, n: (arrived - 1) % n == 0),
        steps_if(lambda arrived, n: arrived % (n + 1) == 0),
        steps_if(lambda arrived, n: n == 1 or arrived % n == n - 1),
        steps_if(lambda arrived, n: arrived % (2 * n) == 0),
    ],
    "not-reset": [steps_if(lambda arrived, n: arrived == n)],
    "per-micro-batch": [steps_if(lambda arrived, n: arrived % n), steps_if(lambda arrived, n: True)],
    "loss-scale": [built_from(multiplies_by_n)],
    "stale-gradients": [
        steps_if(lambda arrived, n: arrived % n == 0, lambda p, optimizer, own, n: None),
    ],
    "zeros-kept": [built_from(zeroes_in_place)],
    "low-precision": [built_from(rounds)],
    "leftover-gradients": [built_from(swallows_its_error), calls_remove],
    "discarded-gradients": [zeroes_the_whole_model, built_from(zeroes_at_the_next_arrival)],
    "clip-limit": [limits_the_norm_of_all, built_from(limits_the_norm), built_from(clips)],
    "orphan-parameters": [uses_the_last_optimizer, only_matrices],
    "shared-optimizer": [one_hook_for_all],
    "shared-counter": [counts_each_arrival_of_all],
    "forgets-state": [one_optimizer_for_each_window],
    "not-attempted": [hooks_only_those_with_a_gradient],
    "frozen-parameters": [thaws_everything],
    "leaks-hooks": [
        returns_how_to_remove,
        zeroes_instead_of_removing,
        removes_the_last,
        stops_with_a_flag,
        stays_with_a_flag,
    ],
    "wrong-type": [returns_the_handle, lambda *a: [with_names(*a)], lambda *a: (with_names(*a), "done")],
    "wrong-value": [built_from(steps_twice), built_from(divides_each_sum), updates_by_hand],
}.items():
    for answer in answers:
        wrong("step_in_backward", bug)(answer)
