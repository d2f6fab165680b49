"""Correct training programs of many kinds: an error that the auditor finds in one of them is a bug of the auditor.

Each is a function that trains a small model. `PROGRAMS` holds them by name. One that changes its window on purpose says
so with its `declare`, which the test sets to `report.declare_window`.
"""

import copy
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from course_utils import train_epoch

PROGRAMS: dict[str, Callable] = {}


def program(function: Callable) -> Callable:
    PROGRAMS[function.__name__] = function
    return function


def net(inputs: int = 3, outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


def batches(count: int = 12, size: int = 4, inputs: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):
        yield torch.randn(size, inputs), torch.randint(2, (size,))


# Every style of zeroing


def zeroing(zero: Callable) -> Callable:
    def run() -> None:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, y in batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            zero(model, optimizer)

    return run


def set_none(model, optimizer):
    for p in model.parameters():
        p.grad = None


def zero_through_data(model, optimizer):
    for p in model.parameters():
        p.grad.data.zero_()


for style in (
    lambda model, optimizer: optimizer.zero_grad(),
    lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    lambda model, optimizer: model.zero_grad(),
    set_none,
    zero_through_data,
):
    PROGRAMS[f"zeroing {len(PROGRAMS) + 1}"] = zeroing(style)


# Accumulation


@program
def the_courses_loop():
    model = net()
    data = [(torch.randn(k, 3), torch.randint(2, (k,))) for k in (4, 2, 1, 3, 2, 4, 1, 4, 4, 2)]
    for _ in range(2):
        train_epoch(model, data, lambda model, b: F.cross_entropy(model(b[0]), b[1]), AdamW(model.parameters()), n=4)


@program
def sums_over_a_token_count():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        window = [(torch.randn(k, 3), torch.randint(2, (k,))) for k in (2, 30, 6, 10)]
        for _, y in window:
            y[0] = -100
        total = sum((y != -100).sum() for _, y in window)
        for x, y in window:
            (F.cross_entropy(model(x), y, reduction="sum") / total).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def windows_of_a_number_of_samples():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    seen = 0
    for size in (6, 6, 6, 6, 6, 6, 6, 6, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4):
        x, y = torch.randn(size, 3), torch.randint(2, (size,))
        F.cross_entropy(model(x), y, reduction="sum").backward()
        seen += size
        if seen >= 12:
            for p in model.parameters():
                p.grad /= seen
            optimizer.step()
            optimizer.zero_grad()
            seen = 0


@program
def growing_windows_declared():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    data = batches(100)
    for n in (1, 2, 4, 8):
        growing_windows_declared.declare(n)
        for _ in range(3):
            for x, y in islice(data, n):
                (F.cross_entropy(model(x), y) / n).backward()
            optimizer.step()
            optimizer.zero_grad()


# Losses


@program
def a_half_weight():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        (0.5 * F.cross_entropy(model(x), y)).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def distillation_in_windows():
    model, teacher = net(), net().requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches()):
        out = model(x)
        soft = F.kl_div(out.log_softmax(-1), teacher(x).softmax(-1), reduction="batchmean")
        ((0.3 * F.cross_entropy(out, y) + 0.7 * soft) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@program
def a_box_loss_in_windows():
    model = net()
    optimizer = AdamW(model.parameters())
    for i, (x, y) in enumerate(batches()):
        out = model(x)
        loss = F.cross_entropy(out, y) + 7.5 * F.smooth_l1_loss(out, x[:, :2])
        (loss / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


@program
def a_gradient_penalty():
    model = net(3, 1)
    optimizer = Adam(model.parameters())
    for x, _ in batches():
        x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def adversarial_examples():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        attacked = (x + 0.1 * x.grad.sign()).detach()
        optimizer.zero_grad()
        F.cross_entropy(model(attacked), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def gradients_of_ones_own():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    for _ in range(3):
        sums = [torch.zeros_like(p) for p in parameters]
        for x, y in batches(4):
            for total, piece in zip(sums, torch.autograd.grad(F.cross_entropy(model(x), y), parameters), strict=True):
                total += piece / 4
        for p, total in zip(parameters, sums, strict=True):
            p.grad = total
        optimizer.step()
        optimizer.zero_grad()


# Several networks and optimizers


@program
def actor_and_critic():
    actor, critic = net(3, 2), net(3, 1)
    of_actor, of_critic = Adam(actor.parameters()), Adam(critic.parameters())
    for x, _ in batches():
        chosen = torch.distributions.Categorical(logits=actor(x))
        action = chosen.sample()
        value = critic(x).squeeze(-1)
        advantage = torch.randn(4) - value.detach()
        of_actor.zero_grad()
        (-(chosen.log_prob(action) * advantage).mean() - 0.01 * chosen.entropy().mean()).backward()
        of_actor.step()
        of_critic.zero_grad()
        F.mse_loss(value, torch.randn(4)).backward()
        of_critic.step()


@program
def unfrozen_with_a_new_group():
    model = net()
    model[0].requires_grad_(False)
    optimizer = SGD(model[2].parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches()):
        if i == 6:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


# Optimizers


@program
def lbfgs():
    model = net()
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=5)
    data = list(batches(2))
    for _ in range(3):

        def closure():
            optimizer.zero_grad()
            total = 0.0
            for x, y in data:
                loss = F.cross_entropy(model(x), y) / len(data)
                loss.backward()
                total += loss.detach()
            return total

        optimizer.step(closure)


@program
def the_optimizer_in_the_backward():
    model = net()

    optimizers = {p: SGD([p], lr=0.1) for p in model.parameters()}

    def step_and_zero(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_and_zero)
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()


# Graphs


@program
def truncated_backpropagation_through_time():
    cell = nn.RNNCell(3, 4)
    optimizer = SGD(cell.parameters(), lr=0.1)
    state = torch.zeros(4, 4)
    for _ in range(5):
        loss = 0.0
        for x, _ in batches(6):
            state = cell(x, state)
            loss = loss + F.mse_loss(state, torch.ones(4, 4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = state.detach()


def checkpointed(reentrant: bool) -> Callable:
    def run() -> None:
        first, shared = nn.Linear(3, 3), nn.Linear(3, 3)
        optimizer = SGD([*first.parameters(), *shared.parameters()], lr=0.1)
        for i, (x, y) in enumerate(batches()):
            x = first(x)
            for _ in range(2):
                x = checkpoint(shared, x, use_reentrant=reentrant)
            (F.cross_entropy(x, y) / 2).backward()
            if (i + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    return run


PROGRAMS["checkpoint, reentrant"] = checkpointed(True)
PROGRAMS["checkpoint, not reentrant"] = checkpointed(False)


@program
def compiled():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    fast = torch.compile(model, backend="eager")
    for x, y in batches():
        F.cross_entropy(fast(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def evaluation_between():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.train()
        for x, y in batches(6):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in batches(3):
                F.cross_entropy(model(x), y)


# Schedules, scaler, clipping


def scheduled(make: Callable, per_epoch: bool) -> Callable:
    def run() -> None:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        schedule = make(optimizer)
        for _ in range(3):
            for i, (x, y) in enumerate(batches(8)):
                (F.cross_entropy(model(x), y) / 2).backward()
                if (i + 1) % 2 == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    if not per_epoch:
                        schedule.step()
                    optimizer.zero_grad()
            if per_epoch:
                schedule.step(*([1.0] if isinstance(schedule, ReduceLROnPlateau) else []))

    return run


PROGRAMS["a schedule per epoch"] = scheduled(lambda o: StepLR(o, 1), True)
PROGRAMS["a plateau"] = scheduled(lambda o: ReduceLROnPlateau(o, patience=0), True)
PROGRAMS["one cycle"] = scheduled(lambda o: OneCycleLR(o, 0.1, total_steps=12), False)
PROGRAMS["a cosine"] = scheduled(lambda o: CosineAnnealingLR(o, 12), False)
PROGRAMS["a warm-up"] = scheduled(lambda o: SequentialLR(o, [LinearLR(o), StepLR(o, 4)], milestones=[4]), False)


def scaled(fused: bool) -> Callable:
    def run() -> None:
        model = net()
        optimizer = AdamW(model.parameters(), fused=fused)
        schedule, scaler = StepLR(optimizer, 1), GradScaler("cpu")
        for i, (x, y) in enumerate(batches(16)):
            x = x * float("inf") if i == 5 else x
            scaler.scale(F.cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                before = scaler.get_scale()
                scaler.update()
                if scaler.get_scale() >= before:
                    schedule.step()
                optimizer.zero_grad()

    return run


PROGRAMS["a scaler that skips a step"] = scaled(False)
PROGRAMS["a scaler that skips a fused step"] = scaled(True)


@program
def a_scaler_for_two_optimizers():
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    optimizers, scaler = [SGD(body.parameters(), lr=0.1), Adam(head.parameters())], GradScaler("cpu")
    for x, y in batches():
        scaler.scale(F.cross_entropy(head(body(x)), y)).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()


@program
def a_step_left_out_by_hand():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if i != 5 and norm < 100:
            optimizer.step()


@program
def clipping_by_value():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()


@program
def a_micro_batch_that_is_masked_in_full():
    """Its gradients are zeros, and the next micro-batch finds them although nothing has zeroed."""
    model = net()
    optimizer = AdamW(model.parameters(), lr=0.01)
    for k in range(4):
        optimizer.zero_grad()
        window = list(batches(3))
        masks = [torch.ones(4) if k != 2 or i else torch.zeros(4) for i in range(3)]
        total = sum(mask.sum() for mask in masks)
        for (x, y), mask in zip(window, masks, strict=True):
            ((F.cross_entropy(model(x), y, reduction="none") * mask).sum() / total).backward()
        optimizer.step()


@program
def a_second_loss_that_is_a_mean_of_means():
    """The tokens of the first loss count alike; the second is a penalty, and a mean by choice."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        window = [next(batches(1, size)) for size in (3, 5, 8)]
        total = sum(len(y) for _, y in window)
        for x, y in window:
            scores = model(x)
            loss = F.cross_entropy(scores, y, reduction="sum") / total + 0.1 * scores.square().mean() / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def a_window_that_a_resumed_run_goes_on_with():
    def run(model, optimizer, pending):
        for x, y in batches(6):
            (F.cross_entropy(model(x), y) / 4).backward()
            pending += 1
            if pending == 4:
                optimizer.step()
                optimizer.zero_grad()
                pending = 0
        return pending

    model = net()
    pending = run(model, SGD(model.parameters(), lr=0.1), 0)
    resumed = net()
    resumed.load_state_dict(model.state_dict())
    optimizer = SGD(resumed.parameters(), lr=0.1)
    for new, old in zip(resumed.parameters(), model.parameters(), strict=True):
        new.grad = old.grad.clone()
    assert run(resumed, optimizer, pending) == 0


# Gradients without an optimizer of PyTorch's, or read in more than one way


@torch.no_grad()
def update_by_hand(model: nn.Module, rate: float = 0.1) -> None:
    for p in model.parameters():
        p -= rate * p.grad


@program
def sharpness_aware_by_hand():
    model = net()
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        steps = [0.05 * p.grad for p in model.parameters()]
        torch._foreach_add_([p.data for p in model.parameters()], steps)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch._foreach_sub_([p.data for p in model.parameters()], steps)
        update_by_hand(model)
        model.zero_grad()


@program
def an_embedding_by_hand():
    for sparse in (False, True):
        table = nn.Embedding(50, 4, sparse=sparse)
        for _ in range(6):
            F.mse_loss(table(torch.randint(50, (4,))), torch.zeros(4, 4)).backward()
            with torch.no_grad():
                table.weight -= 0.5 * table.weight.grad
            table.weight.grad = None


@program
def workers_whose_gradients_a_shared_model_takes():
    shared = net()
    optimizer = Adam(shared.parameters())
    workers = [net() for _ in range(2)]
    for x, y in batches():
        for local in workers:
            local.load_state_dict(shared.state_dict())
            local.zero_grad()
            F.cross_entropy(local(x), y).backward()
            for theirs, ours in zip(shared.parameters(), local.parameters(), strict=True):
                theirs._grad = ours.grad
            optimizer.step()


@program
def gradient_surgery():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    for x, y in batches():
        out, tasks = model(x), []
        for loss in (F.cross_entropy(out, y), F.mse_loss(out, x[:, :2])):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            tasks.append([p.grad.clone() for p in parameters])
        for p, one, other in zip(parameters, *tasks, strict=True):
            p.grad = one + other - min(0.0, float((one * other).sum())) * other / other.square().sum()
        optimizer.step()


@program
def clipped_sample_by_sample():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        for p in model.parameters():
            p.summed_grad = torch.zeros_like(p)
        for one, target in zip(x.split(1), y.split(1), strict=True):
            F.cross_entropy(model(one), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for p in model.parameters():
                p.summed_grad += p.grad
            model.zero_grad()
        for p in model.parameters():
            p.grad = (p.summed_grad + 0.01 * torch.randn_like(p)) / len(x)
        optimizer.step()
        optimizer.zero_grad()


@program
def two_discriminators_in_one_optimizer():
    generators, critics = [net(3, 3) for _ in range(2)], [net(3, 1) for _ in range(2)]
    g = Adam([p for model in generators for p in model.parameters()])
    d = Adam([p for model in critics for p in model.parameters()])
    real, fake = torch.ones(4, 1), torch.zeros(4, 1)
    for x, _ in batches():
        there = generators[0](x)
        back = generators[1](there)
        for critic in critics:
            critic.requires_grad_(False)
        g.zero_grad()
        (F.l1_loss(back, x) + F.mse_loss(critics[0](there), real) + F.mse_loss(critics[1](back), real)).backward()
        g.step()
        for critic in critics:
            critic.requires_grad_(True)
        d.zero_grad()
        for critic, made in zip(critics, (there, back), strict=True):
            (0.5 * F.mse_loss(critic(x), real) + 0.5 * F.mse_loss(critic(made.detach()), fake)).backward()
        d.step()


@program
def several_losses_of_one_forward_pass_in_windows():
    body, heads = nn.Linear(3, 4), [nn.Linear(4, 2) for _ in range(3)]
    optimizer = SGD([*body.parameters(), *(p for head in heads for p in head.parameters())], lr=0.1)
    for i, (x, y) in enumerate(batches()):
        features = body(x)
        for head in heads:
            (F.cross_entropy(head(features), y) / 4).backward(retain_graph=True)
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@program
def layers_that_are_skipped_at_random():
    layers = [nn.Linear(3, 3) for _ in range(4)]
    optimizer = SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    for i, (x, y) in enumerate(batches(24)):
        for layer in [layers[0], *(layer for layer in layers[1:] if torch.rand(()) < 0.5)]:
            x = layer(x)
        (F.cross_entropy(x, y) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@program
def an_attack_that_saturates():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        change = torch.zeros_like(x, requires_grad=True)
        for _ in range(5):
            F.cross_entropy(model(x + change), y).backward()
            change.data.add_(change.grad.sign(), alpha=0.1).clamp_(-0.2, 0.2)
            change.grad.zero_()
        optimizer.zero_grad()
        F.cross_entropy(model(x + change.detach()), y).backward()
        optimizer.step()


@program
def first_order_meta_learning():
    model = net()
    optimizer = Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for _ in range(3):
            inner = copy.deepcopy(model)
            for x, y in batches(2):
                F.cross_entropy(inner(x), y).backward()
                update_by_hand(inner)
                inner.zero_grad()
            ((x, y),) = batches(1)
            F.cross_entropy(inner(x), y).backward()
            for total, p in zip(sums, inner.parameters(), strict=True):
                total += p.grad / 3
        for p, total in zip(model.parameters(), sums, strict=True):
            p.grad = total
        optimizer.step()


@program
def each_part_is_zeroed_by_itself():
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in batches():
        F.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
        head.zero_grad()
        body.zero_grad(set_to_none=False)


# Windows that are not all alike


def ramp_as_detectors_do(factor: float, loader: bool) -> Callable:
    """The window grows from 1 to 4 over 16 micro-batches; a counter that goes on over the epochs says when to step."""

    def run() -> None:
        model = net()
        optimizer, scaler = SGD(model.parameters(), lr=0.001, momentum=0.9), GradScaler("cpu", enabled=False)
        dataset = TensorDataset(torch.randn(88, 3), torch.randint(2, (88,)))
        seen, last = 0, -1
        for _ in range(3):
            for x, y in DataLoader(dataset, 4) if loader else [dataset[k : k + 4] for k in range(0, 88, 4)]:
                accumulate = max(1, round(1 + 3 * min(seen, 16) / 16))
                loss = F.cross_entropy(model(x), y) * factor
                scaler.scale(loss).backward()
                if seen - last >= accumulate or seen == 65:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    last = seen
                seen += 1

    return run


PROGRAMS["a ramp, times the batch"] = ramp_as_detectors_do(16.0, loader=False)
PROGRAMS["a ramp, times the batch, from a loader"] = ramp_as_detectors_do(16.0, loader=True)


def scheduled_windows(schedule: list[list[int]], foreach: bool | None = None, half: bool = False) -> Callable:
    """An epoch for each list; each update is the mean over its own micro-batches."""

    def run() -> None:
        model = net().to(torch.bfloat16) if half else net()
        optimizer = AdamW(model.parameters(), lr=0.01, foreach=foreach)
        for sizes in schedule:
            data = batches(sum(sizes))
            for size in sizes:
                for x, y in islice(data, size):
                    out = model(x.to(model[0].weight.dtype))
                    (F.cross_entropy(out.float(), y) / size).backward()
                optimizer.step()
                optimizer.zero_grad()

    return run


PROGRAMS["a larger window from the second epoch on"] = scheduled_windows([[2, 2, 2, 1], [4, 4, 4, 3], [8, 8]])
PROGRAMS["a smaller window after the warm-up"] = scheduled_windows([[8, 8, 2], [2] * 9, [2] * 9], foreach=True)
PROGRAMS["a window that grows and shrinks"] = scheduled_windows([[1, 2, 4, 8, 8, 4, 2, 1]], foreach=False, half=True)
PROGRAMS["doubling in each update"] = scheduled_windows([[1, 2, 4, 8]])


@program
def labelled_and_unlabelled_loaders_with_tails():
    """The second loader is short and begins again in the middle of a window."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    labelled = DataLoader(TensorDataset(torch.randn(40, 3), torch.randint(2, (40,))), batch_size=4)
    other = DataLoader(TensorDataset(torch.randn(12, 3)), batch_size=4)
    more = iter(other)
    for _ in range(3):
        for i, (x, y) in enumerate(labelled):
            try:
                (u,) = next(more)
            except StopIteration:
                more = iter(other)
                (u,) = next(more)
            held = min(4, 10 - i // 4 * 4)
            ((F.cross_entropy(model(x), y) + 0.1 * model(u).square().mean()) / held).backward()
            if (i + 1) % 4 == 0 or i + 1 == 10:
                optimizer.step()
                optimizer.zero_grad()


@program
def an_endless_loader():
    """One iterator for the whole run, whose sampler begins again and again; the tails come at regular places."""

    class Endless:
        def __iter__(self):
            while True:
                yield from range(40)

    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    data = iter(DataLoader(TensorDataset(torch.randn(40, 3), torch.randint(2, (40,))), 4, sampler=Endless()))
    for _ in range(3):
        for i in range(10):
            x, y = next(data)
            (F.cross_entropy(model(x), y) / min(4, 10 - i // 4 * 4)).backward()
            if (i + 1) % 4 == 0 or i + 1 == 10:
                optimizer.step()
                optimizer.zero_grad()


# Losses spelled by hand, graphs that are shared, and losses of their own


@program
def a_resumed_run_with_a_short_first_epoch():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for first in (4, 0, 0):
        for i, (x, y) in list(enumerate(batches(10)))[first:]:
            (F.cross_entropy(model(x), y) / min(4, 10 - i // 4 * 4)).backward()
            if (i + 1) % 4 == 0 or i + 1 == 10:
                optimizer.step()
                optimizer.zero_grad()


@program
def a_smoothed_loss_in_windows_under_a_scaler():
    model, scaler = net(), GradScaler("cpu", init_scale=128.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches(16)):
        scaler.scale(F.cross_entropy(model(x), y, label_smoothing=0.1) / 4).backward()
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@program
def an_uncertainty_that_is_learned():
    model, log_variance = net(), nn.Parameter(torch.zeros(2))
    optimizer = Adam([*model.parameters(), log_variance])
    for i, (x, y) in enumerate(batches(16)):
        out = model(x)
        losses = torch.stack([F.cross_entropy(out, y), F.mse_loss(out, x[:, :2])])
        (((-log_variance).exp() * losses + log_variance).sum() / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@program
def a_backward_call_on_meta_tensors_before_the_loop():
    """As a count of the operations does; then training."""
    with torch.device("meta"):
        model = net()
        F.cross_entropy(model(torch.randn(4, 3)), torch.zeros(4, dtype=torch.long)).backward()
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches(16)):
        (F.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@program
def sums_one_of_which_is_halved_for_two_samples():
    """The 2 is a choice, as the sum beside it shows, and no count of samples."""
    model = net(3, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    for i, (x, _) in enumerate(batches(16, 2)):
        out = model(x)
        where, how_sure = out[:, :1], out[:, 1:]
        loss = F.mse_loss(where, x[:, :1], reduction="sum") / 2
        loss = loss + F.binary_cross_entropy_with_logits(how_sure, torch.ones(2, 1), reduction="sum")
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@program
def by_hand_clipped_and_loaded_again():
    """As where the best weights are loaded after training: the model that was trained is gone."""
    model = net()
    for x, y in batches():
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update_by_hand(model)
    model = copy.deepcopy(model)


@program
def a_schedule_for_epochs_that_end_inside_windows():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = StepLR(optimizer, step_size=1)
    seen = 0
    for _ in range(4):
        for x, y in batches(10):
            (F.cross_entropy(model(x), y) / 4).backward()
            seen += 1
            if seen % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()


@program
def windows_over_a_data_set_with_a_short_last_batch():
    model = net()
    optimizer = Adam(model.parameters())
    data = TensorDataset(torch.randn(30, 3), torch.randint(2, (30,)))
    endless = (batch for _ in range(9) for batch in DataLoader(data, 8))
    for _ in range(8):
        for x, y in islice(endless, 3):
            (F.cross_entropy(model(x), y) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def windows_over_the_end_of_a_data_set_that_is_reached_once():
    model = net()
    optimizer = Adam(model.parameters())
    data = TensorDataset(torch.randn(110, 3), torch.randint(2, (110,)))
    endless = (batch for _ in range(2) for batch in DataLoader(data, 8))
    for _ in range(7):
        for x, y in islice(endless, 3):
            (F.cross_entropy(model(x), y) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def a_schedule_right_before_the_step():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = LinearLR(optimizer)
    for i, (x, y) in enumerate(batches()):
        (F.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            schedule.step()
            optimizer.step()
            optimizer.zero_grad()


@program
def a_schedule_that_changes_nothing_in_every_micro_batch():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = ConstantLR(optimizer, factor=1.0)
    for i, (x, y) in enumerate(batches()):
        (F.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()


@program
def gradients_averaged_through_data():
    model = net()
    optimizer = Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        for x, y in batches(3):
            F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad.data.mul_(1 / 3)
        optimizer.step()


@program
def zeros_filled_through_data():
    """As in Reptile: the gradient is the way from the weights that copies of the model have found."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for _ in range(3):
            learner = copy.deepcopy(model)
            inner = Adam(learner.parameters(), lr=0.01)
            for x, y in batches(2):
                inner.zero_grad()
                F.cross_entropy(learner(x), y).backward()
                inner.step()
            for p, found in zip(model.parameters(), learner.parameters(), strict=True):
                p.grad.data.add_(p.data - found.data, alpha=1 / 3)
        optimizer.step()


@program
def parts_of_a_network_on_one_batch():
    """As in slimmable networks: the losses of several widths are added up."""
    first, second = nn.Linear(3, 8), nn.Linear(8, 2)
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for x, y in batches(6):
        optimizer.zero_grad()
        for width in (8, 4, 2):
            hidden = F.linear(x, first.weight[:width], first.bias[:width]).tanh()
            F.cross_entropy(F.linear(hidden, second.weight[:, :width], second.bias), y).backward()
        optimizer.step()


@program
def a_limit_times_the_scale():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu")
    for i, (x, y) in enumerate(batches()):
        scaler.scale(F.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.25 * scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
