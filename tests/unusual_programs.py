"""Correct training programs that look like bugs: what is done in them on purpose can't be known from outside.

`PROGRAMS` holds them by name, together with those of `correct_programs.py`.
"""

import random
from itertools import cycle, islice

import torch
from torch import nn
from torch.amp import GradScaler
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from correct_programs import PROGRAMS, batches, net, program

__all__ = ["PROGRAMS"]
real_or_fake = F.binary_cross_entropy_with_logits


# Several losses, which are meant to be added up


def a_gan_step(learn) -> None:
    generator, critic = net(2, 3), net(3, 1)
    g, d = Adam(generator.parameters()), Adam(critic.parameters())
    for x, _ in batches():
        d.zero_grad()
        learn(critic, x, generator(torch.randn(4, 2)).detach())
        d.step()
        g.zero_grad()
        real_or_fake(critic(generator(torch.randn(4, 2))), torch.ones(4, 1)).backward()
        g.step()


@program
def a_helper_that_calls_backward():
    def learn(loss):
        loss.backward()

    def both(critic, real, fake):
        learn(F.relu(1 - critic(real)).mean())
        learn(F.relu(1 + critic(fake)).mean())

    a_gan_step(both)


@program
def real_and_fake_in_a_loop():
    def both(critic, real, fake):
        for x, label in ((real, 0.9), (fake, 0.1)):
            real_or_fake(critic(x), torch.full((4, 1), label)).backward()

    a_gan_step(both)


@program
def losses_in_a_list():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for (x, y), (u, _) in zip(batches(), batches(size=8), strict=True):
        guess = model(u).detach().argmax(1)
        losses = [F.cross_entropy(model(x), y), F.cross_entropy(model(u + 0.1 * torch.randn_like(u)), guess)]
        optimizer.zero_grad()
        for loss in losses:
            loss.backward()
        optimizer.step()


@program
def a_loader_for_each_domain():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    domains = [DataLoader(TensorDataset(torch.randn(48, 3), torch.randint(2, (48,))), 4) for _ in range(3)]
    for one_of_each in zip(*domains, strict=True):
        optimizer.zero_grad()
        for x, y in one_of_each:
            F.cross_entropy(model(x), y).backward()
        optimizer.step()


@program
def hooks_that_divide():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient / 4)
    for i, (x, y) in enumerate(batches()):
        F.cross_entropy(model(x), y).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@program
def a_trunk_and_the_value_head_of_another_optimizer():
    trunk, value, policy = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
    of_policy, of_value = Adam([*trunk.parameters(), *policy.parameters()]), Adam(value.parameters())
    for x, y in batches():
        of_policy.zero_grad()
        of_value.zero_grad()
        F.mse_loss(value(trunk(x).tanh()), torch.randn(4, 1)).backward()
        of_value.step()
        F.cross_entropy(policy(trunk(x).tanh()), y).backward()
        of_policy.step()


# Gradients of zero, and none


@program
def margins_that_are_kept():
    model = net(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, _) in enumerate(batches()):
        optimizer.zero_grad()
        F.relu((-1e6 if i % 3 else 1.0) - model(x)).mean().backward()
        optimizer.step()


@program
def every_optimizer_steps_whichever_task_it_is():
    trunk, heads = nn.Linear(3, 4), [nn.Linear(4, 2) for _ in range(3)]
    optimizers = [Adam(module.parameters()) for module in (trunk, *heads)]
    for (x, y), head in zip(batches(), cycle(heads[:2]), strict=False):  # the turn of the third has not come yet
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(head(trunk(x)), y).backward()
        for optimizer in optimizers:
            optimizer.step()


@program
def points_that_are_added_to_a_scene():
    """The optimizer's parameter is replaced by a longer one, before the step."""
    points = nn.Parameter(torch.randn(10, 3))
    optimizer = SGD([points], lr=0.01)
    for i in range(20):
        F.mse_loss(points.sum(0), torch.ones(3)).backward()
        if i % 6 == 5:
            points = nn.Parameter(torch.cat([points, points[:2] + 0.1]).detach())
            optimizer.param_groups[0]["params"][0] = points
        optimizer.step()
        optimizer.zero_grad()


@program
def a_loss_network_that_is_not_frozen():
    model, unused, network = net(3, 3), nn.Linear(7, 7), net(3, 5)
    optimizer = Adam([*model.parameters(), *unused.parameters()])
    for x, _ in batches():
        optimizer.zero_grad()
        F.mse_loss(network(model(x)), network(x)).backward()
        optimizer.step()


# Gradients that are used in more than one way


@program
def a_line_search():
    model = net()
    optimizer = SGD(model.parameters(), lr=1.0)
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        saved = [p.detach().clone() for p in model.parameters()]
        for rate in (5.0, 2.5, 1.25):
            with torch.no_grad():
                torch._foreach_copy_(list(model.parameters()), saved)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()


@program
def momentum_that_is_kept_in_grad():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for p in model.parameters():
            p.grad.mul_(0.9)


@program
def momentum_that_is_kept_in_grad_and_clipped():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(batches()):
        if number:
            for p in model.parameters():
                p.grad.mul_(0.9)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@program
def the_norm_of_each_loss_before_their_sum():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        out = model(x)
        one, other = F.cross_entropy(out, y), F.mse_loss(out, x[:, :2])
        for loss in (one, other, one + other):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
        optimizer.step()


@program
def fisher_information_after_each_epoch():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def gradients(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        return [p.grad for p in model.parameters()]

    for _ in range(2):
        for x, y in batches(8):
            gradients(x, y)
            optimizer.step()
        information = [torch.zeros_like(p) for p in model.parameters()]
        for x, y in batches(12, 1):
            for total, gradient in zip(information, gradients(x, y), strict=True):
                total += gradient.square()


@program
def a_window_that_is_given_up_at_a_nan():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    held = 0
    for i, (x, y) in enumerate(batches(26)):
        loss = F.cross_entropy(model(x * (float("nan") if i == 9 else 1)), y) / 4
        loss.backward()
        held += 1
        if held == 4 or not loss.isfinite():
            if loss.isfinite():
                optimizer.step()
            optimizer.zero_grad()
            held = 0


# Scalers, clipping, schedules


@program
def two_models_with_a_scaler_each():
    models = [net(), net()]
    optimizers, scalers = [Adam(model.parameters()) for model in models], [GradScaler("cpu") for _ in models]
    for x, y in batches():
        for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.step(optimizer)
            scaler.update()


@program
def two_stages_with_a_scaler_each():
    model = net()
    optimizer = AdamW(model.parameters())

    def train():
        scaler = GradScaler("cpu")
        for x, y in batches():
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()

    train()
    train()


@program
def unscaled_by_hand_and_clipped():
    for through_data in (False, True):
        model, scaler = net(), GradScaler("cpu")
        optimizer = AdamW(model.parameters())
        for x, y in batches():
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            for p in model.parameters():
                (p.grad.data if through_data else p.grad).div_(scaler.get_scale())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


@program
def the_norm_is_only_measured():
    model, scaler = net(), GradScaler("cpu")
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches()):
        scaler.scale(F.cross_entropy(model(x), y) / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        if i % 4 == 3:
            scaler.step(optimizer)
            scaler.update()
            nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.zero_grad()


@program
def schedules_whose_lengths_are_in_micro_batches():
    for schedule_of in (lambda o: CosineAnnealingLR(o, 16), lambda o: OneCycleLR(o, 0.1, total_steps=16)):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        schedule = schedule_of(optimizer)
        for i, (x, y) in enumerate(batches(16)):
            (F.cross_entropy(model(x), y) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()


@program
def an_optimizer_that_clips_in_its_step():
    class Clips(SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    nn.utils.clip_grad_norm_(p, 1.0)
            super().step()

    model = net()
    optimizer = Clips(model.parameters(), lr=0.1)
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


# Windows of any size


@program
def episodes_of_any_length():
    for lengths in ([9, 14, 11, 11, 10], [10, 10, 25, 10], [5, 7, 5, 7, 5, 7]):
        model = net()
        optimizer = Adam(model.parameters())
        for length in lengths:
            optimizer.zero_grad()
            for x, y in batches(length, 1):
                (-model(x).log_softmax(1)[0, y[0]] * random.random()).backward()
            optimizer.step()


@program
def tasks_whose_windows_are_not_alike():
    model = net()
    optimizer = Adam(model.parameters())
    data = batches(36)
    for n in islice(cycle((2, 4)), 12):
        for x, y in islice(data, n):
            (-model(x).log_softmax(1).gather(1, y[:, None]).logsumexp(0).sum() / n).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def episodes_whose_means_are_added_up():
    model = net()
    optimizer = Adam(model.parameters())
    for i in range(20):
        x, a = next(batches(1, random.randint(3, 9)))
        (model(x).log_softmax(1).gather(1, a[:, None])[:, 0] * torch.randn(len(a))).mean().neg().backward()
        if i % 5 == 4:
            optimizer.step()
            optimizer.zero_grad()


@program
def the_pairs_of_lists_of_any_length():
    model = net(3, 1)
    optimizer = Adam(model.parameters())
    for _ in range(6):
        for x, _ in (next(batches(1, size)) for size in (5, 3, 6, 4)):
            (F.logsigmoid(model(x) - model(x).T).mean().neg() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def contrasts_with_the_stored_features_of_the_others():
    model = net(3, 4)
    optimizer = AdamW(model.parameters())
    for _ in range(6):
        window = [x for x, _ in batches(3)]
        with torch.no_grad():
            features = [model(x) for x in window]
        for i, x in enumerate(window):
            everything = torch.cat([*features[:i], model(x), *features[i + 1 :]])
            F.cross_entropy(everything @ everything.T, torch.arange(12)).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def contrasts_in_both_directions():
    """Of images with the stored texts of the other micro-batches, and of texts with their images."""
    images, texts = net(3, 4), net(3, 4)
    optimizer = AdamW([*images.parameters(), *texts.parameters()])

    def beside(model, k, window, stored):
        return torch.cat([*stored[:k], model(window[k]), *stored[k + 1 :]])

    for _ in range(6):
        window = [x for x, _ in batches(3)]
        with torch.no_grad():
            stored = [images(x) for x in window], [texts(x) for x in window]
        for k in range(len(window)):
            scores = beside(images, k, window, stored[0]) @ beside(texts, k, window, stored[1]).T
            pairs = torch.arange(len(scores))
            ((F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def weights_that_are_cast_up_for_clipping_and_the_step():
    """Forward and backward passes run in bfloat16; weights and gradients are float32 from the clipping to the step."""
    model = net()
    optimizer = AdamW(model.parameters())

    def cast(kind):
        for p in model.parameters():
            p.data = p.data.to(kind)
            p.grad = None if p.grad is None else p.grad.to(kind)

    cast(torch.bfloat16)
    for _ in range(6):
        optimizer.zero_grad()
        for x, y in batches(4):
            (F.cross_entropy(model(x.bfloat16()), y) / 4).backward()
        cast(torch.float32)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        cast(torch.bfloat16)


# Gradients that are computed and not used, or replaced


@program
def a_break_between_backward_and_step():
    model = net()
    optimizer = Adam(model.parameters())
    for _ in range(6):
        for i, (x, y) in enumerate(batches(8)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if i == 5:  # the policy has moved far enough
                break
            optimizer.step()


@program
def weights_of_losses_whose_gradient_is_replaced():
    model, weights = net(3, 3), nn.Parameter(torch.ones(2))
    of_model, of_weights = Adam(model.parameters()), Adam([weights], lr=0.01)
    for x, y in batches():
        out = model(x)
        losses = [F.cross_entropy(out[:, :2], y), F.mse_loss(out[:, 2], x[:, 0])]
        of_model.zero_grad()
        sum(weights * torch.stack(losses)).backward(retain_graph=True)
        norms = [torch.autograd.grad(w * loss, model[2].weight, create_graph=True)[0].norm()
                 for w, loss in zip(weights, losses, strict=True)]  # fmt: skip
        weights.grad = torch.autograd.grad((norms[0] - norms[1]).abs(), weights)[0]
        of_model.step()
        of_weights.step()


@program
def a_schedule_that_is_told_the_same_number_again():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule, updates = LambdaLR(optimizer, lambda number: 1 / (1 + number)), 0
    for i, (x, y) in enumerate(batches(16)):
        (F.cross_entropy(model(x), y) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
        schedule.step(updates)


@program
def class_weights_in_windows():
    model = net()
    optimizer = Adam(model.parameters())
    for i, (x, y) in enumerate(batches()):
        (F.cross_entropy(model(x), y, weight=torch.tensor([1.0, 1.7])) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


@program
def answers_that_are_averaged_one_by_one():
    model = net()
    optimizer = AdamW(model.parameters())
    for i in range(12):
        answers = [torch.randn(random.randint(2, 6), 3) for _ in range(3)]
        losses = [-(model(x).log_softmax(1)[:, 0] * random.gauss(0, 1)).sum() / len(x) for x in answers]
        (torch.stack(losses).mean() / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


@program
def a_backward_call_for_each_step_of_a_sequence():
    cell, head = nn.RNNCell(3, 4), nn.Linear(4, 2)
    optimizer = Adam([*cell.parameters(), *head.parameters()])
    for _ in range(6):
        state = torch.zeros(2, 4)
        optimizer.zero_grad()
        for t in range(4):
            state = cell(torch.randn(2, 3), state)
            F.cross_entropy(head(state), torch.randint(2, (2,))).backward(retain_graph=t < 3)
        optimizer.step()


@program
def a_loss_in_shards_of_what_the_decoder_made():
    encoder, decoder, head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 9)
    optimizers = [Adam(encoder.parameters()), Adam([*decoder.parameters(), *head.parameters()])]
    for x, _ in batches(size=8):
        for optimizer in optimizers:
            optimizer.zero_grad()
        out = decoder(encoder(x).tanh())
        leaf = out.detach().requires_grad_()
        for shard in leaf.split(2):
            (F.cross_entropy(head(shard), torch.randint(9, (2,)), reduction="sum") / 8).backward()
        out.backward(leaf.grad)
        for optimizer in optimizers:
            optimizer.step()


@program
def the_sum_over_tasks_of_meta_learning():
    model = net()
    optimizer = Adam(model.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        for (x, y), (u, v) in zip(batches(4), batches(4), strict=True):
            weights = dict(model.named_parameters())
            for _ in range(2):
                loss = F.cross_entropy(functional_call(model, weights, x), y)
                gradients = torch.autograd.grad(loss, weights.values(), create_graph=True)
                weights = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), gradients, strict=True)}
            F.cross_entropy(functional_call(model, weights, u), v).backward()
        optimizer.step()


@program
def restarts_of_any_number_in_an_update():
    restarts = random.Random(3)
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches(16):
        optimizer.zero_grad()
        again = True
        while again:
            again = restarts.random() < 0.5
            F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y).backward()
        optimizer.step()


# Verdicts that are only likely


@program
def temporal_differences_in_episodes_of_any_length():
    for lengths in ([5, 9, 5, 5, 3, 5, 8, 5], [5, 6, 5, 5, 5, 5, 4, 5]):
        model = net(3, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        for length in lengths:
            optimizer.zero_grad()
            for state, _ in batches(length, 1):
                F.mse_loss(model(state), 1 + 0.9 * model(torch.randn(1, 3)).detach()).backward()
            optimizer.step()


@program
def an_auxiliary_gradient_is_clipped_by_itself():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        out = model(x)
        F.mse_loss(out, torch.zeros_like(out)).backward(retain_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        F.cross_entropy(out, y).backward()
        optimizer.step()


@program
def every_optimizer_steps_beside_a_loss_network():
    trunk, heads, network = nn.Linear(3, 4), [nn.Linear(4, 2) for _ in range(3)], net(2, 2)
    optimizers = [Adam(module.parameters()) for module in (trunk, *heads)]
    for (x, y), head in zip(batches(), cycle(heads[:2]), strict=False):
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(network(head(trunk(x))), y).backward()
        for optimizer in optimizers:
            optimizer.step()


@program
def the_gradient_is_measured_at_the_end_by_the_same_helper():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def backward(x, y):
        F.cross_entropy(model(x), y).backward()

    for x, y in batches():
        optimizer.zero_grad()
        backward(x, y)
        optimizer.step()
    optimizer.zero_grad()
    for x, y in batches(3):
        backward(x, y)


@program
def a_micro_batch_is_left_out_and_its_share_with_it():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches(24)):
        loss = F.cross_entropy(model(x * (float("nan") if i == 9 else 1)), y) / 4
        if loss.isfinite():
            loss.backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@program
def a_slow_part_beside_a_fast_one():
    model = net()
    slow, fast = SGD(model[0].parameters(), lr=0.1 / 4), SGD(model[2].parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches(24)):
        F.cross_entropy(model(x), y).backward()
        fast.step()
        fast.zero_grad()
        if i % 4 == 3:
            slow.step()
            slow.zero_grad()


@program
def two_gradients_whose_sum_is_put_into_data():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        gradients = []
        for half in (slice(2), slice(2, 4)):
            optimizer.zero_grad()
            F.cross_entropy(model(x[half]), y[half]).backward()
            gradients.append([p.grad for p in model.parameters()])
        for p, one, other in zip(model.parameters(), *gradients, strict=True):
            p.grad.data = one + other
        optimizer.step()


@program
def a_memory_that_is_compared_with_later():
    """Its gradient and the batch's are read, and what is made of them is written over .grad."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    memory = next(batches())
    for i, (x, y) in enumerate(batches(16)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if i > 4:
            gradients = [p.grad.clone() for p in model.parameters()]
            optimizer.zero_grad()
            F.cross_entropy(model(memory[0]), memory[1]).backward()
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p.grad.data.copy_(gradient - 0.1 * p.grad)
        optimizer.step()


@program
def a_schedule_of_ones_own_whose_length_is_in_micro_batches():
    def decay(warmup, total):
        return lambda step: step / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))

    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, decay(4, 24))
    for i, (x, y) in enumerate(batches(24)):
        (F.cross_entropy(model(x), y) / 4).backward()
        schedule.step()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


# Loops of which nothing says that they go over micro-batches


@program
def agents_that_share_a_policy():
    policy = net()
    optimizer = Adam(policy.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        for _agent in range(3):
            scores = policy(torch.randn(8, 3)).log_softmax(1)[:, 0]
            (scores * torch.rand(8)).mean().neg().backward()
        optimizer.step()


@program
def workers_that_call_backward_themselves():
    class Worker:
        def __init__(self, model):
            self.model = model

        def work(self):
            F.mse_loss(self.model(torch.randn(6, 3)), torch.randn(6, 2)).backward()

    model = net()
    optimizer, workers = Adam(model.parameters()), [Worker(model) for _ in range(3)]
    for _ in range(6):
        optimizer.zero_grad()
        for worker in workers:
            worker.work()
        optimizer.step()


@program
def losses_of_several_scales():
    model = net(3, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, _ in batches(size=8):
        optimizer.zero_grad()
        for level in range(3):
            F.l1_loss(model(x[: 8 >> level]), x[: 8 >> level]).backward()
        optimizer.step()


@program
def steps_of_a_sequence_whose_state_is_detached():
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 2)
    optimizer = Adam([*cell.parameters(), *head.parameters()])
    for _ in range(6):
        state = torch.zeros(2, 4)
        optimizer.zero_grad()
        for _t in range(4):
            state = cell(torch.randn(2, 3), state)
            F.cross_entropy(head(state), torch.randint(2, (2,))).backward()
            state = state.detach()
        optimizer.step()


@program
def one_episode_that_is_longer():
    for lengths in ([5, 5, 5, 8, 5, 5, 5], [5, 5, 10, 5, 5, 5]):
        model = net(3, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        for length in lengths:
            t = 0
            while t < length:  # until the environment says so
                F.mse_loss(model(torch.randn(1, 3)), torch.randn(1, 1)).backward()
                t += 1
            optimizer.step()
            optimizer.zero_grad()


@program
def one_episode_that_is_longer_in_a_single_loop():
    ends = {5, 10, 15, 23, 28, 33, 38}
    model = net(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for t in range(1, 39):
        F.mse_loss(model(torch.randn(1, 3)), torch.randn(1, 1)).backward()
        done = t in ends
        if done:
            optimizer.step()
            optimizer.zero_grad()


# Optimizers of the script's own


@program
def an_optimizer_that_counts_inside():
    class Accumulating(SGD):
        calls = 0

        def step(self, closure=None):
            self.calls += 1
            if self.calls % 4 == 0:
                super().step()

        def zero_grad(self, set_to_none=True):
            if self.calls % 4 == 0:
                super().zero_grad()

    model = net()
    optimizer = Accumulating(model.parameters(), lr=0.1)
    for x, y in batches(16):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()


@program
def an_optimizer_whose_step_divides():
    class Averaging(SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.div_(4)
            super().step()

    model = net()
    optimizer = Averaging(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches(16)):
        F.cross_entropy(model(x), y).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@program
def an_optimizer_that_collects_clipped_gradients():
    """As for differential privacy: its step puts into .grad what it has collected, sample by sample."""

    class Private(SGD):
        def begin(self):
            self.sums = [torch.zeros_like(p) for p in self.param_groups[0]["params"]]

        def collect(self):
            for p, total in zip(self.param_groups[0]["params"], self.sums, strict=True):
                total.add_(p.grad / max(1.0, float(p.grad.norm())))

        def step(self, closure=None):
            for p, total in zip(self.param_groups[0]["params"], self.sums, strict=True):
                p.grad.data = total / 4
            super().step()

    model = net()
    optimizer = Private(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.begin()
        for i in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            optimizer.collect()
        optimizer.step()


@program
def a_warm_up_of_ones_own_in_micro_batches():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, lambda batch: min(1.0, (batch + 1) / 8))
    for i, (x, y) in enumerate(batches(24)):
        (F.cross_entropy(model(x), y) / 4).backward()
        schedule.step()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


# Gradients and weights that are moved through `.data`, or put in from elsewhere


@program
def sharpness_through_data_in_one_loop():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        for first in (True, False):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if first:
                ways = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
                for p, way in zip(model.parameters(), ways, strict=True):
                    p.data.add_(way)
        for p, way in zip(model.parameters(), ways, strict=True):
            p.data.sub_(way)
        optimizer.step()


@program
def signs_of_a_copys_gradients():
    model, copied = net(), net()
    optimizer = SGD(model.parameters(), lr=0.001)
    x, y = next(batches(1, 64))
    for _ in range(12):
        copied.load_state_dict(model.state_dict())
        copied.zero_grad()
        F.cross_entropy(copied(x), y).backward()
        for p, q in zip(model.parameters(), copied.parameters(), strict=True):
            p.grad = q.grad.sign()
        optimizer.step()


@program
def a_server_whose_clients_train_the_last_layers():
    """Its gradient is the way that a client has gone, and zero for the layers that are frozen."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), net())
    server = SGD(model.parameters(), lr=1.0)
    weights = list(model.parameters())
    for _ in range(6):
        before = [p.detach().clone() for p in weights]
        client = SGD(weights[4:], lr=0.1)
        for x, y in batches(3):
            client.zero_grad()
            F.cross_entropy(model(x), y).backward()
            client.step()
        for p, old in zip(weights, before, strict=True):
            p.grad = old - p.detach()
            p.data = old
        server.step()


# Steps that come later, or not at all


@program
def a_critic_whose_steps_have_not_begun():
    generator, critic = net(2, 3), net(3, 1)
    g, d = Adam(generator.parameters()), Adam(critic.parameters())
    for i, (x, _) in enumerate(batches()):
        g.zero_grad()
        out = generator(torch.randn(4, 2))
        F.mse_loss(out, x).backward()
        g.step()
        d.zero_grad()
        (F.relu(1 - critic(x)).mean() + F.relu(1 + critic(out.detach())).mean()).backward()
        if i >= 10_000:
            d.step()


@program
def a_run_that_ends_before_its_last_step():
    model = net()
    optimizer = Adam(model.parameters())
    for i, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if i == 10:
            break
        optimizer.step()


@program
def a_first_micro_batch_before_the_loop():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    data = batches(16)
    x, y = next(data)
    (F.cross_entropy(model(x), y) / 4).backward()
    for i, (x, y) in enumerate(data, 1):
        (F.cross_entropy(model(x), y) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@program
def a_window_that_is_given_up_at_a_spike():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    held = 0
    for i, (x, y) in enumerate(batches(46)):
        (F.cross_entropy(model(x), y) / 4).backward()
        held += 1
        if i == 21:  # the loss is far too large
            optimizer.zero_grad()
            held = 0
        elif held == 4:
            optimizer.step()
            optimizer.zero_grad()
            held = 0


# Clipping, scaling, and parts of a model


@program
def clipping_where_a_batch_has_no_loss():
    for steps_all_the_same in (True, False):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(batches(16)):
            optimizer.zero_grad()
            if has_loss := i % 5 != 2:
                F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if has_loss or steps_all_the_same:
                optimizer.step()


@program
def agents_that_are_clipped_one_by_one():
    agents = [net(3, 1) for _ in range(3)]
    optimizer = Adam([p for agent in agents for p in agent.parameters()])
    for _ in range(6):
        optimizer.zero_grad()
        for agent in agents:
            F.mse_loss(agent(torch.randn(4, 3)), torch.randn(4, 1)).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()


@program
def a_penalty_beside_unscaled_gradients():
    model, scaler = net(), GradScaler("cpu")
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        (1e-3 * sum(p.square().sum() for p in model.parameters())).backward()
        scaler.step(optimizer)
        scaler.update()


@program
def half_a_squared_error_in_windows_of_two():
    model = net(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches()):
        loss = F.mse_loss(model(x), y[:, None].float()) / 2
        (loss / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


@program
def one_loss_for_two_parts_by_their_inputs():
    encoder, head = net(3, 4), nn.Linear(4, 2)
    optimizer = SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(head(encoder(x)), y)
        loss.backward(inputs=list(encoder.parameters()), retain_graph=True)
        (2 * loss).backward(inputs=list(head.parameters()))
        optimizer.step()


@program
def a_head_with_a_loss_of_its_own():
    encoder, head = net(3, 4), nn.Linear(4, 2)
    optimizers = [Adam(encoder.parameters()), Adam(head.parameters())]
    for x, y in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(head(encoder(x)), y).backward()
        F.cross_entropy(head(torch.randn(4, 4)), y).backward()
        for optimizer in optimizers:
            optimizer.step()


@program
def an_embedding_that_steps_before_the_hypernetworks_regularizer():
    network, tasks = nn.Linear(2, 6), nn.Parameter(torch.randn(3, 2))
    of_network, of_tasks = Adam(network.parameters()), Adam([tasks])
    for i, (x, y) in enumerate(batches()):
        of_network.zero_grad()
        of_tasks.zero_grad()
        F.cross_entropy(x @ network(tasks[i // 4]).view(3, 2), y).backward()
        of_tasks.step()
        if i >= 4:  # there is a task before
            network(tasks[0].detach()).square().mean().backward()
        of_network.step()


@program
def gradients_that_are_masked_to_zeros():
    """As where only what all domains agree on is learned, and they agree on nothing."""
    model = net()
    optimizer = Adam(model.parameters())
    for x, y in batches():
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), model.parameters())
        optimizer.zero_grad()
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = torch.zeros_like(gradient)
        optimizer.step()


@program
def weights_that_follow_a_change_that_is_learned():
    """Their own gradients are never used: an optimizer learns the change, and then it is added to the weights."""
    weights = [nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(5, 2))]
    changes = [nn.Parameter(torch.zeros_like(p)) for p in weights]
    optimizer = Adam(changes, lr=0.01)
    for x, y in batches():
        for change in changes:
            change.data.zero_()
        for _ in range(2):
            optimizer.zero_grad()
            first, second = (p + change for p, change in zip(weights, changes, strict=True))
            F.cross_entropy((x @ first).tanh() @ second, y).backward()
            optimizer.step()
        for p, change in zip(weights, changes, strict=True):
            p.data = p.data + change.data
