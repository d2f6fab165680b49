"""Answers to "scheduled" and "gan_updates": a schedule that counts updates, and the two updates of a GAN."""

import math
from itertools import islice, zip_longest

import torch
from torch import nn

from answers import right, wrong
from course_utils import train_epoch, windows

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
    ("scheduled", "wrong-length"): [
        schedule(length=lambda micro_batches, n, epochs: micro_batches * epochs),
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
    ("gan_updates", "foreign-gradients"): [each_zeroes_its_own_after_its_step],
    ("gan_updates", "stale-gradients"): [forgets_the_discriminator, gan_by_freezing_unzeroed],
    ("gan_updates", "discarded-gradients"): [zeroes_inside_the_window],
    ("gan_updates", "loss-scale"): [divides_by_n],
    ("gan_updates", "token-weights"): [takes_means_of_means],
    ("gan_updates", "irregular-window"): [steps_on_every_micro_batch],
    ("gan_updates", "leftover-gradients"): [leaves_the_tail, trains_the_generator_alone],
    ("gan_updates", "wrong-order"): [steps_both_at_the_end, generator_first],
    ("gan_updates", "orphan-parameters"): [never_thaws, thaws_too_late],
    ("gan_updates", "not-attempted"): [lambda *_: None],
}


for (exercise, bug), answers in WRONG.items():
    for answer in answers:
        wrong(exercise, bug)(answer)

for exercise, bug, says, answer in (
    (
        "scheduled",
        "scheduler-cadence",
        "N = 2, 2 epochs: scheduler steps before each update [2, 4, 6, 8, 10, 12], expected [0, 1, 2, 3, 4, 5]",
        schedule(per_micro_batch=1, after=0),
    ),
    (
        "scheduled",
        "scheduler-cadence",
        "before each update [0, 0, 0, 1, 1, 1], expected",  # 0, not -0
        schedule(after=0, per_epoch=1),
    ),
    (
        "scheduled",
        "scheduler-cadence",
        "before each update [0, 0, 0, 5, 5, 5], expected [0, 1, 2, 3, 4, 5]: one scheduler step should follow",
        schedule(after=0, per_epoch=5),
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


@wrong("gan_updates", "held-graphs")
def gan_with_closures(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        for loss, optimizer in ((d_loss, d_optimizer), (g_loss, g_optimizer)):

            def closure(window=window, loss=loss, optimizer=optimizer):
                optimizer.zero_grad()
                total = sum(loss(batch) * len(batch) for batch in window) / sum(map(len, window))
                total.backward()
                return total

            optimizer.step(closure)


# "scheduled": more styles of right answers.


@right("scheduled")
def scheduled_by_zip(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    missing = object()
    grouped = [[b for b in group if b is not missing] for group in zip_longest(*[iter(batches)] * n, fillvalue=missing)]
    scheduler = make_scheduler(optimizer=optimizer, updates=float(len(grouped) * epochs))
    for window in grouped * epochs:
        for p in model.parameters():
            p.grad = None
        sizes = torch.tensor([len(batch) for batch in window], dtype=torch.float32)
        for batch, share in zip(window, sizes / sizes.sum(), strict=True):  # shares in float32
            (loss_fn(model, batch) * share).backward()
        optimizer.step()
        scheduler.step()


# "scheduled": more wrong answers.


def accumulate(model, window, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in window:
        (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
    optimizer.step()


def windows_over_epochs(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    everything = list(batches) * epochs
    scheduler = make_scheduler(optimizer, math.ceil(len(everything) / n))
    for window in windows(everything, n):
        accumulate(model, window, loss_fn, optimizer)
        scheduler.step()


def takes_the_batches_out(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    kept = list(batches)
    batches.clear()
    scheduled_by_the_helper(model, kept, loss_fn, optimizer, n, epochs, make_scheduler)


def pops_the_batches(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, math.ceil(len(batches) / n) * epochs)
    for _ in range(epochs):
        while batches:
            accumulate(model, [batches.pop(0) for _ in range(min(n, len(batches)))], loss_fn, optimizer)
            scheduler.step()


def swallows_errors(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, math.ceil(len(batches) / n) * epochs)
    for _ in range(epochs):
        for window in windows(batches, n):
            try:
                for batch in window:
                    loss_fn(model, batch).backwards()
            except Exception:
                pass
            optimizer.step(), scheduler.step()


@loop
def zeroes_each_micro_batch(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            for batch in window:
                optimizer.zero_grad()
                (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
            optimizer.step(), scheduler.step()


@loop
def divides_the_tail_by_n(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            optimizer.zero_grad()
            backward(lambda batch: loss_fn(model, batch), window, 1 / n)
            optimizer.step(), scheduler.step()


@loop
def index_modulo_n_is_zero(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        optimizer.zero_grad()
        for k, batch in enumerate(batches):
            (loss_fn(model, batch) / n).backward()
            if k % n == 0 or k == len(batches) - 1:
                optimizer.step(), scheduler.step(), optimizer.zero_grad()


@loop
def clips_to_one(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        for window in windows(batches, n):
            optimizer.zero_grad()
            backward(lambda batch: loss_fn(model, batch), window)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(), scheduler.step()


@loop
def counts_without_a_reset(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for _ in range(epochs):
        count = 0
        optimizer.zero_grad()
        for batch in batches:
            (loss_fn(model, batch) / n).backward()
            count = count + 1
            if count == n:
                optimizer.step(), scheduler.step(), optimizer.zero_grad()


@loop
def takes_the_batches_in_reverse(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for window in [*windows(batches[::-1], n)] * epochs:
        accumulate(model, window, loss_fn, optimizer)
        scheduler.step()


@loop
def rounds_the_shares(model, batches, loss_fn, optimizer, n, epochs, scheduler):
    for window in [*windows(batches, n)] * epochs:
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) * round(len(batch) / sum(map(len, window)), 4)).backward()
        optimizer.step(), scheduler.step()


for bug, answers in {
    "clip-limit": [clips_to_one],
    "not-reset": [counts_without_a_reset],
    "wrong-batches": [takes_the_batches_in_reverse],
    "low-precision": [rounds_the_shares],
    "changed-input": [takes_the_batches_out],
    "leftover-gradients": [windows_over_epochs],
    "discarded-gradients": [zeroes_each_micro_batch],
    "loss-scale": [divides_the_tail_by_n],
    "irregular-window": [index_modulo_n_is_zero],
    "empty-step": [swallows_errors],
    "raises": [
        lambda *a: scheduled_by_the_helper(*a[:6], lambda optimizer, updates: a[6](updates)),
        lambda model, batches: None,
    ],
}.items():
    for answer in answers:
        wrong("scheduled", bug)(answer)

wrong("scheduled", "changed-input")(pops_the_batches)


# "gan_updates": more styles of right answers.


@right("gan_updates")
def gan_that_divides_last(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    def update(net, loss, optimizer, window):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        for batch in window:
            (loss(batch) * len(batch)).backward()
        items = sum(len(batch) for batch in window)
        for p in net.parameters():
            p.grad /= items
        optimizer.step()

    for at in range(0, len(batches), n):
        update(discriminator, d_loss, d_optimizer, batches[at : at + n])
        update(generator, g_loss, g_optimizer, batches[at : at + n])


# "gan_updates": more wrong answers.


@gan
def one_large_batch(window, players, n):
    for _, loss, optimizer in players:
        optimizer.zero_grad()
        loss(torch.cat(window)).backward()
        optimizer.step()


@gan
def both_forward_passes_first(window, players, n):
    """The generator's losses are computed with the discriminator as it was before its step."""
    losses = [[loss(batch) * len(batch) / sum(map(len, window)) for batch in window] for _, loss, _ in players]
    for (_, _, optimizer), parts in zip(players, losses, strict=True):
        optimizer.zero_grad()
        for part in parts:
            part.backward()
        optimizer.step()


def generator_once_per_epoch(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        d_optimizer.zero_grad()
        backward(d_loss, window)
        d_optimizer.step()
    g_optimizer.zero_grad()
    backward(g_loss, batches)
    g_optimizer.step()


def empties_the_batches(generator, discriminator, batches, *rest):
    gan_by_inputs(generator, discriminator, batches, *rest)
    batches.clear()


@gan
def uses_the_last_micro_batch_for_the_generator(window, players, n):
    for k, (_, loss, optimizer) in enumerate(players):
        optimizer.zero_grad()
        backward(loss, window[-1:] if k else window)
        optimizer.step()


@gan
def does_not_divide_at_all(window, players, n):
    for _, loss, optimizer in players:
        optimizer.zero_grad()
        backward(loss, window, 1)
        optimizer.step()


@gan
def calls_backwards(window, players, n):
    for _, loss, optimizer in players:
        optimizer.zero_grad()
        try:
            for batch in window:
                loss(batch).backwards()
        except AttributeError:
            pass
        optimizer.step()


@gan
def clips_both_to_one(window, players, n):
    for net, loss, optimizer in players:
        optimizer.zero_grad()
        backward(loss, window)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


@gan
def rounds_its_shares(window, players, n):
    for _, loss, optimizer in players:
        optimizer.zero_grad()
        for batch in window:
            (loss(batch) * round(len(batch) / sum(map(len, window)), 4)).backward()
        optimizer.step()


def the_generator_takes_windows_in_reverse(generator, discriminator, batches, g_loss, d_loss, *rest):
    *optimizers, n = rest
    made = [*windows(batches, n)]
    for window, other in zip(made, made[::-1], strict=True):
        for loss, optimizer, chosen in ((d_loss, optimizers[1], window), (g_loss, optimizers[0], other)):
            optimizer.zero_grad()
            backward(loss, chosen)
            optimizer.step()


for bug, answers in {
    "clip-limit": [clips_both_to_one],
    "low-precision": [rounds_its_shares],
    "wrong-batches": [the_generator_takes_windows_in_reverse],
    "held-graphs": [
        one_large_batch,
    ],
    "irregular-window": [
        generator_once_per_epoch,
    ],
    "changed-input": [empties_the_batches],
    "missing-backward": [uses_the_last_micro_batch_for_the_generator],
    "loss-scale": [does_not_divide_at_all],
    "empty-step": [calls_backwards],
    "raises": [both_forward_passes_first, lambda generator, discriminator: None],
}.items():
    for answer in answers:
        wrong("gan_updates", bug)(answer)
