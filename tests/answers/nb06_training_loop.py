"""Answers to "scheduled" and "gan_updates": a schedule that counts updates, and the two updates of a GAN."""

import math
from itertools import islice

import torch
from torch import nn

from answers import outcomes, right, wrong
from answers.loops import squares
from course_utils import mlp, train_epoch, windows

# A training loop with a schedule that counts updates.


@right("scheduled")
def scheduled_by_the_helper(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, epochs * len(list(windows(batches, n))))
    for _ in range(epochs):
        train_epoch(model, batches, loss_fn, optimizer, n, len, scheduler=scheduler)


@right("scheduled")
def scheduled_by_modulo(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    ends = {k for k in range(len(batches)) if (k + 1) % n == 0 or k + 1 == len(batches)}
    scheduler = make_scheduler(optimizer, epochs * len(ends))
    for _ in range(epochs):
        model.zero_grad()
        for k, batch in enumerate(batches):
            start = k - k % n
            total = sum(map(len, batches[start : start + n]))
            loss_fn(model, batch).backward(torch.tensor(len(batch) / total, dtype=torch.float64))
            if k in ends:
                optimizer.step()
                model.zero_grad(set_to_none=False)
                scheduler.step()


@right("scheduled")
def scheduled_without_the_last_scheduler_step(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    updates = epochs * -(-len(batches) // n)
    scheduler, done = make_scheduler(optimizer, updates), 0
    for _ in range(epochs):
        iterator = iter(batches)
        while window := list(islice(iterator, n)):
            optimizer.zero_grad()
            for batch in window:
                (loss_fn(model, batch) * len(batch)).backward()
            for p in model.parameters():
                p.grad /= sum(map(len, window))
            if done:
                scheduler.step()
            optimizer.step()
            done += 1


def schedule(length=None, per_micro_batch=0, before=0, after=1, per_epoch=0, made_each_epoch=False):
    """A loop that is right but for its schedule."""

    def answer(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
        updates = length(len(batches), n, epochs) if length else math.ceil(len(batches) / n) * epochs
        scheduler = make_scheduler(optimizer, updates)
        optimizer.zero_grad()
        for epoch in range(epochs):
            if epoch and made_each_epoch:
                scheduler = make_scheduler(optimizer, updates)
            for window in windows(batches, n):
                for batch in window:
                    (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
                    step_scheduler(scheduler, per_micro_batch)
                step_scheduler(scheduler, before)
                optimizer.step()
                step_scheduler(scheduler, after)
                optimizer.zero_grad()
            step_scheduler(scheduler, per_epoch)

    return answer


def step_scheduler(scheduler, times):
    for _ in range(times):
        scheduler.step()


def loop(train):
    """Another loop, under a right schedule."""

    def answer(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
        scheduler = make_scheduler(optimizer, math.ceil(len(batches) / n) * epochs)
        train(model, batches, loss_fn, optimizer, n, epochs, scheduler)

    return answer


@loop
def drops_the_tail(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        optimizer.zero_grad()
        for k, batch in enumerate(batches):
            (loss_fn(model, batch) / n).backward()
            if (k + 1) % n == 0:
                optimizer.step(), scheduler.step(), optimizer.zero_grad()


@loop
def never_zeroes(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            for batch in window:
                (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
            optimizer.step(), scheduler.step()


@loop
def starts_dirty(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            for batch in window:
                (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
            optimizer.step(), scheduler.step(), optimizer.zero_grad()


@loop
def means_of_means(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            optimizer.zero_grad()
            for batch in window:
                (loss_fn(model, batch) / len(window)).backward()
            optimizer.step(), scheduler.step()


@loop
def does_not_divide(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            optimizer.zero_grad()
            for batch in window:
                loss_fn(model, batch).backward()
            optimizer.step(), scheduler.step()


@loop
def updates_per_micro_batch(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for batch in batches * epochs:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step(), scheduler.step()


@loop
def zeroes_before_the_step(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            for batch in window:
                loss_fn(model, batch).backward()
            optimizer.zero_grad(), optimizer.step(), scheduler.step()


def one_epoch(*arguments):
    return scheduled_by_the_helper(*arguments[:5], 1, arguments[6])


def without_a_schedule(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    for _ in range(epochs):
        train_epoch(model, batches, loss_fn, optimizer, n, len)


# The two updates of a GAN.


@right("gan_updates")
def gan_by_freezing(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    generator.zero_grad(), discriminator.zero_grad()
    for window in windows(batches, n):
        total = sum(map(len, window))
        generator.requires_grad_(False)
        for batch in window:
            (d_loss(batch) * len(batch) / total).backward()
        generator.requires_grad_(True)
        d_optimizer.step(), d_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        for batch in window:
            (g_loss(batch) * len(batch) / total).backward()
        discriminator.requires_grad_(True)
        g_optimizer.step(), g_optimizer.zero_grad()


@right("gan_updates")
def gan_by_inputs(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        for net, loss, optimizer in ((discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)):
            net.zero_grad()
            for batch in window:
                share = len(batch) / sum(map(len, window))
                (share * loss(batch)).backward(inputs=list(net.parameters()))
            optimizer.step()


@right("gan_updates")
def gan_by_zeroing_everything(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    parameters = [*generator.parameters(), *discriminator.parameters()]
    iterator = iter(batches)
    while window := list(islice(iterator, n)):
        for loss, optimizer in ((d_loss, d_optimizer), (g_loss, g_optimizer)):
            for p in parameters:
                p.grad = None
            for batch in window:
                (loss(batch) * len(batch) / sum(map(len, window))).backward()
            optimizer.step()


@right("gan_updates")
def gan_by_autograd_grad(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        for net, loss, optimizer in ((discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)):
            parameters = list(net.parameters())
            for p in parameters:
                p.grad = torch.zeros_like(p)
            for batch in window:
                gradients = torch.autograd.grad(loss(batch) * len(batch) / sum(map(len, window)), parameters)
                for p, gradient in zip(parameters, gradients, strict=True):
                    p.grad += gradient
            optimizer.step()


def gan(update):
    """Every window by `update(window, [(network, loss, optimizer), ...], n)`, the discriminator first."""

    def answer(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
        for window in windows(batches, n):
            update(window, [(discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)], n)

    return answer


def backward(loss, window, shares=None):
    for batch in window:
        (loss(batch) * (shares or len(batch) / sum(map(len, window)))).backward()


@gan
def each_zeroes_its_own_after_its_step(window, players, n):  # Lightning-AI/pytorch-lightning#591
    for _, loss, optimizer in players:
        backward(loss, window)
        optimizer.step(), optimizer.zero_grad()


@gan
def cures_only_the_discriminator(window, players, n):
    (discriminator, d_loss, d_optimizer), (_, g_loss, g_optimizer) = players
    d_optimizer.zero_grad()
    backward(d_loss, window)
    d_optimizer.step()
    discriminator.requires_grad_(False)
    backward(g_loss, window)
    discriminator.requires_grad_(True)
    g_optimizer.step(), g_optimizer.zero_grad()


@gan
def forgets_the_discriminator(window, players, n):  # Hsintien-Ng/idinvert_pytorch-reproduced#1
    for k, (_, loss, optimizer) in enumerate(players):
        if k:
            optimizer.zero_grad()
        backward(loss, window)
        optimizer.step()


@gan
def zeroes_inside_the_window(window, players, n):
    for _, loss, optimizer in players:
        for batch in window:
            optimizer.zero_grad()
            backward(loss, [batch], len(batch) / sum(map(len, window)))
        optimizer.step()


@gan
def divides_by_n(window, players, n):
    for _, loss, optimizer in players:
        optimizer.zero_grad()
        backward(loss, window, 1 / n)
        optimizer.step()


@gan
def takes_means_of_means(window, players, n):
    for _, loss, optimizer in players:
        optimizer.zero_grad()
        backward(loss, window, 1 / len(window))
        optimizer.step()


@gan
def steps_on_every_micro_batch(window, players, n):
    for batch in window:
        for _, loss, optimizer in players:
            optimizer.zero_grad()
            backward(loss, [batch])
            optimizer.step()


@gan
def leaves_the_tail(window, players, n):
    if len(window) == n:
        for _, loss, optimizer in players:
            optimizer.zero_grad()
            backward(loss, window)
            optimizer.step()


@gan
def steps_both_at_the_end(window, players, n):
    for net, loss, _ in players:
        net.zero_grad()
        for batch in window:
            (loss(batch) * len(batch) / sum(map(len, window))).backward(inputs=list(net.parameters()))
    for _, _, optimizer in players:
        optimizer.step()


@gan
def generator_first(window, players, n):
    for _, loss, optimizer in players[::-1]:
        optimizer.zero_grad()
        backward(loss, window)
        optimizer.step()


@gan
def never_thaws(window, players, n):
    for (_, loss, optimizer), (other, _, _) in zip(players, players[::-1], strict=True):
        other.requires_grad_(False)
        optimizer.zero_grad()
        backward(loss, window)
        optimizer.step()


@gan
def freezes_its_own_network(window, players, n):
    for net, loss, optimizer in players:
        net.requires_grad_(False)
        optimizer.zero_grad()
        backward(loss, window)
        optimizer.step()
        net.requires_grad_(True)


@gan
def thaws_too_late(window, players, n):
    discriminator = players[0][0]
    discriminator.requires_grad_(True)
    for k, (_, loss, optimizer) in enumerate(players):
        discriminator.requires_grad_(k == 0)
        optimizer.zero_grad()
        backward(loss, window)
        optimizer.step()


@gan
def trains_the_generator_alone(window, players, n):
    _, loss, optimizer = players[1]
    optimizer.zero_grad()
    backward(loss, window)
    optimizer.step()


def gan_by_freezing_unzeroed(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    players = [(discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)]
    for window in windows(batches, n):
        for (_, loss, optimizer), (other, _, _) in zip(players, players[::-1], strict=True):
            other.requires_grad_(False)
            backward(loss, window)
            other.requires_grad_(True)
            optimizer.step(), optimizer.zero_grad()


WRONG = {
    ("scheduled", "scheduler-cadence"): [
        schedule(per_micro_batch=1, after=0),  # starVLA/starVLA!210
        schedule(after=0, per_epoch=1),
        schedule(after=0),
        schedule(after=0, before=1),
        schedule(after=2),
        schedule(made_each_epoch=True),
        schedule(per_epoch=1),
        without_a_schedule,
    ],
    ("scheduled", "wrong-length"): [
        schedule(length=lambda micro_batches, n, epochs: micro_batches * epochs),
        schedule(length=lambda micro_batches, n, epochs: micro_batches // n * epochs),
        schedule(length=lambda micro_batches, n, epochs: math.ceil(micro_batches / n)),
        schedule(length=lambda micro_batches, n, epochs: micro_batches),
        schedule(length=lambda micro_batches, n, epochs: math.ceil(micro_batches * epochs / n)),
        schedule(length=lambda micro_batches, n, epochs: 1000),
        schedule(length=lambda micro_batches, n, epochs: micro_batches / n * epochs),
        one_epoch,
    ],
    ("scheduled", "leftover-gradients"): [drops_the_tail],
    ("scheduled", "stale-gradients"): [never_zeroes, starts_dirty],
    ("scheduled", "token-weights"): [means_of_means],
    ("scheduled", "loss-scale"): [does_not_divide],
    ("scheduled", "irregular-window"): [updates_per_micro_batch],
    ("scheduled", "discarded-gradients"): [zeroes_before_the_step],
    ("scheduled", "not-attempted"): [lambda *_: None, lambda *a: a[6](a[3], 4) and None],
    ("scheduled", "wrong-type"): [
        lambda *a: scheduled_by_the_helper(*a[:6], lambda optimizer, updates: a[6](optimizer, "x"))
    ],
    ("gan_updates", "foreign-gradients"): [each_zeroes_its_own_after_its_step, cures_only_the_discriminator],
    ("gan_updates", "stale-gradients"): [forgets_the_discriminator, gan_by_freezing_unzeroed],
    ("gan_updates", "discarded-gradients"): [zeroes_inside_the_window],
    ("gan_updates", "loss-scale"): [divides_by_n],
    ("gan_updates", "token-weights"): [takes_means_of_means],
    ("gan_updates", "irregular-window"): [steps_on_every_micro_batch],
    ("gan_updates", "leftover-gradients"): [leaves_the_tail, trains_the_generator_alone],
    ("gan_updates", "wrong-order"): [steps_both_at_the_end, generator_first],
    ("gan_updates", "orphan-parameters"): [never_thaws, thaws_too_late, freezes_its_own_network],
    ("gan_updates", "not-attempted"): [lambda *_: None],
}


for (exercise, bug), answers in WRONG.items():
    for answer in answers:
        wrong(exercise, bug)(answer)

for exercise, bug, says, answer in (
    (
        "scheduled",
        "scheduler-cadence",
        "N = 4, 2 epochs: scheduler steps before each update [4, 8, 12, 16], expected [0, 1, 2, 3]",
        schedule(per_micro_batch=1, after=0),
    ),
    (
        "scheduled",
        "scheduler-cadence",
        "before each update [0, 0, 1, 1], expected",  # 0, not -0
        schedule(after=0, per_epoch=1),
    ),
    (
        "scheduled",
        "wrong-length",
        "a schedule for 4 updates, 6 will run",
        schedule(length=lambda micro_batches, n, epochs: micro_batches // n * epochs),
    ),
    (
        "gan_updates",
        "foreign-gradients",
        "N = 2: update 2 of the discriminator holds gradients of the generator's loss",
        each_zeroes_its_own_after_its_step,
    ),
):
    wrong(exercise, bug, says=says)(answer)

wrong("scheduled", "empty-step")(lambda *a: a[3].step())
wrong("gan_updates", "empty-step")(lambda *a: a[5].step() or a[6].step())


@right("scheduled")
def scheduled_with_closures(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, math.ceil(len(batches) / n) * epochs)
    for window in [*windows(batches, n)] * epochs:

        def closure(window=window):
            optimizer.zero_grad()
            loss = sum(loss_fn(model, batch) * len(batch) for batch in window) / sum(map(len, window))
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step()


@right("gan_updates")
def gan_with_closures(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        for loss, optimizer in ((d_loss, d_optimizer), (g_loss, g_optimizer)):

            def closure(window=window, loss=loss, optimizer=optimizer):
                optimizer.zero_grad()
                total = sum(loss(batch) * len(batch) for batch in window) / sum(map(len, window))
                total.backward()
                return total

            optimizer.step(closure)


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()


def torch_seeded(seed):
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


@outcomes("scheduled")
def outcomes_of_scheduled(answer):
    """The lengths of the schedules, the learning rate of each update, and the weights."""
    for case in (
        (2, 2, (2,) * 6, 1),
        (4, 3, (3, 1, 2, 4, 1, 2), 0),
        (1, 1, (2, 1), 1),
        (9, 2, (1, 2), 0),
    ):
        yield lambda case=case: trained(answer, *case)


def trained(answer, n, epochs, sizes, dirty):
    generator, made, rates = torch_seeded(n), [], []
    model = mlp(3, 4, 2).double()
    batches = [torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in sizes]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))

    def make(optimizer, updates):
        made.append(updates)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    for p in model.parameters():
        p.grad = torch.ones_like(p) if dirty else None
    answer(model, batches, squares, optimizer, n, epochs, make)
    return [*made, *rates, *flat(model)]


@outcomes("gan_updates", mutate=[gan_by_freezing])
def outcomes_of_gan_updates(answer):
    """The weights of both networks after two epochs, and which are trained."""
    for case in ((2, (2,) * 6, 1), (4, (3, 1, 2, 4, 1, 2), 0), (1, (2, 1), 1), (9, (1, 2), 0)):
        yield lambda case=case: trained_gan(answer, *case)


def trained_gan(answer, n, sizes, dirty):
    generator = torch_seeded(n)
    nets = nn.ModuleList([mlp(2, 4, 3), mlp(3, 4, 1)]).double()
    batches = [torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in sizes]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5) for net in nets]
    generates, discriminates = nets

    def g_loss(batch):
        return (discriminates(generates(batch[:, 3:])) - 1).square().mean()

    def d_loss(batch):
        return (discriminates(generates(batch[:, 3:])).square() + (discriminates(batch[:, :3]) - 1).square()).mean()

    for p in nets.parameters():
        p.grad = torch.ones_like(p) if dirty else None
    for _ in range(2):
        answer(generates, discriminates, batches, g_loss, d_loss, *optimizers, n)
    return [*flat(nets), *(float(p.requires_grad) for p in nets.parameters())]
