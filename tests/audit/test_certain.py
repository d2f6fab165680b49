"""What makes a fault certain where a correct loop could look alike, and what leaves it a question."""

import math
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from runs import data, found, net, update, with_sgd
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from gradaudit import audit
from gradaudit.history import Backward
from gradaudit.schedules import own_numbers

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")
ERROR, QUESTION = [("scheduler-cadence", "error")], [("scheduler-cadence", "undecided")]


# A schedule of the script's own, stepped in every micro-batch: 24 of them in 6 windows


def train_on_schedule(schedule_of, n=4, count=24):
    model, optimizer = with_sgd()
    schedule = schedule_of(optimizer)
    for i, (x, y) in enumerate(data(count)):
        (F.cross_entropy(model(x), y) / n).backward()
        schedule.step()
        if (i + 1) % n == 0:
            update(optimizer)


def cosine(total_steps, warmup_steps=2):
    def rate(step):
        if step < warmup_steps:
            return step / warmup_steps
        return 0.6 + 0.5 * math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps))

    return rate


def polynomial(step, *, num_training_steps):
    return 1.5 + math.cos(step / num_training_steps)


class Plan:
    def __init__(self, num_updates):
        self.num_updates = num_updates

    def rate(self, step):
        return 1.5 + math.cos(step / self.num_updates)


class Cosine(LRScheduler):
    def __init__(self, optimizer, max_iters):
        self.max_iters = max_iters
        super().__init__(optimizer)

    def get_lr(self):
        return [rate * (1.5 + math.cos(self.last_epoch / self.max_iters)) for rate in self.base_lrs]


class ByWindows(Cosine):
    def __init__(self, optimizer, max_iters, size):
        self.size = size
        super().__init__(optimizer, max_iters)

    def get_lr(self):
        return [rate * (1.5 + math.cos(self.last_epoch // self.size / self.max_iters)) for rate in self.base_lrs]


def every_window(total_updates, size):
    return lambda step: 1.5 + math.cos(step // size / total_updates)


def in_periods(steps_per_cycle):
    return lambda step: 1.5 + math.cos(step / steps_per_cycle)


@pytest.mark.parametrize(
    ("schedule_of", "expected"),
    [
        (lambda optimizer: LambdaLR(optimizer, cosine(6)), ERROR),
        (lambda optimizer: LambdaLR(optimizer, cosine(5)), ERROR),
        (lambda optimizer: LambdaLR(optimizer, cosine(6.0)), ERROR),
        (lambda optimizer: LambdaLR(optimizer, partial(polynomial, num_training_steps=6)), ERROR),
        (lambda optimizer: LambdaLR(optimizer, Plan(6).rate), ERROR),
        (lambda optimizer: Cosine(optimizer, 6), ERROR),
        (lambda optimizer: LambdaLR(optimizer, cosine(24)), QUESTION),
        (lambda optimizer: LambdaLR(optimizer, cosine(12)), QUESTION),
        (lambda optimizer: LambdaLR(optimizer, cosine(12, 6)), QUESTION),
        (lambda optimizer: Cosine(optimizer, 24), QUESTION),
        (lambda optimizer: ByWindows(optimizer, 6, 4), QUESTION),
        (lambda optimizer: ByWindows(optimizer, 6, 8), ERROR),
        (lambda optimizer: LambdaLR(optimizer, every_window(6, 4)), QUESTION),
        (lambda optimizer: LambdaLR(optimizer, lambda step: 1.5 + math.cos(step // 4 / 6)), QUESTION),
        (lambda optimizer: LambdaLR(optimizer, in_periods(6)), QUESTION),
        (lambda optimizer: LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 6)), ERROR),
        (lambda optimizer: LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 21)), QUESTION),
    ],
)  # fmt: skip
def test_a_length_that_is_that_of_the_run_in_updates_is_not_counted_in_micro_batches(schedule_of, expected):
    with audit() as report:
        train_on_schedule(schedule_of)
    assert found(report) == expected


def test_the_report_says_why_a_schedule_was_at_its_end():
    with audit() as report:
        train_on_schedule(lambda optimizer: LambdaLR(optimizer, cosine(6)))
    assert "; its length of 6 is that of the run in updates, and it was stepped 24 times" in report.findings[0].message
    with audit() as report:
        train_on_schedule(lambda optimizer: LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 6)))
    assert "; the learning rate has been 0 for the last 19 of 24 steps" in report.findings[0].message
    with audit() as report:
        train_on_schedule(lambda optimizer: Cosine(optimizer, 24))
    assert "; its length of 24 seems to be counted in the same way" in report.findings[0].message


def test_a_cell_that_has_been_deleted_holds_no_number():
    function = cosine(6)
    schedule = LambdaLR(SGD(net().parameters(), lr=0.1), function)
    assert own_numbers(schedule)[0] == 6
    for cell in function.__closure__:
        del cell.cell_contents
    assert own_numbers(schedule)[0] == 0


# Zeroed in every micro-batch, where the last of a window has a line of its own


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x)


def train_zeroing(n, divide_by, rounds=4, first_loss=F.cross_entropy):
    model, optimizer = with_sgd()
    for i, (x, y) in enumerate(data(n * rounds)):
        optimizer.zero_grad()
        if (i + 1) % n:
            (first_loss(model(x), y) / divide_by).backward()
        else:
            (F.cross_entropy(model(x), y) / divide_by).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("n", "divide_by", "level"),
    [(4, 4, "error"), (3, 3, "error"), (2, 2, "undecided"), (4, 1, "undecided"), (4, 2, "undecided")],
)
def test_zeroed_calls_that_are_divided_by_the_calls_of_a_window_are_its_micro_batches(n, divide_by, level):
    with audit() as report:
        train_zeroing(n, divide_by)
    assert ("discarded-gradients", level) in found(report)


def test_zeroed_calls_of_another_loss_are_no_micro_batches():
    with audit() as report:
        train_zeroing(4, 4, first_loss=F.multi_margin_loss)
    assert ("discarded-gradients", "undecided") in found(report)


@pytest.mark.parametrize(("used_twice", "level"), [(False, "error"), (True, "undecided")])
def test_half_of_a_loss_may_be_probed_and_then_used_if_both_are_of_one_batch(used_twice, level):
    model, optimizer = with_sgd()
    loader = DataLoader(TensorDataset(torch.randn(32, 3), torch.randint(2, (32,))), batch_size=4)
    with audit() as report:
        for i, (x, y) in enumerate(loader):
            if i % 2 == 0 or used_twice:
                optimizer.zero_grad()
                (F.cross_entropy(model(x), y) / 2).backward()
            if i % 2 or used_twice:
                optimizer.zero_grad()
                (F.cross_entropy(model(x), y) / 2).backward()
                optimizer.step()
    assert ("discarded-gradients", level) in found(report)


def test_one_window_alone_does_not_tell_what_a_division_means():
    with audit() as report:
        train_zeroing(4, 4, rounds=1)
    assert ("discarded-gradients", "undecided") in found(report)


@pytest.mark.parametrize("waits", [True, False])
def test_zeroed_calls_that_wait_for_a_later_one_to_be_averaged_are_micro_batches(waits, monkeypatch):
    begin = Backward.__init__
    numbers = []

    def flagged(call, number, *args, **kwargs):
        begin(call, number, *args, **kwargs)
        numbers.append(number)
        call.synced = number % 4 == 0 or not waits

    monkeypatch.setattr(Backward, "__init__", flagged)
    with audit() as report:
        train_zeroing(4, 1)
    assert numbers[:4] == [1, 2, 3, 4]
    assert ("discarded-gradients", "error" if waits else "undecided") in found(report)


# A loss that reaches the other network after that one's own


def train_two(detach=False, keep_out=True, part=False):
    body, head, judge = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 1)
    ours, theirs = Adam([*body.parameters(), *head.parameters()]), Adam(judge.parameters())
    for _ in range(5):
        x = torch.randn(6, 3)
        hidden = body(x)
        made = head(hidden.detach() if part else hidden)
        own = (x - made).abs().mean() - 0.1 * judge(made).mean() + hidden.mean()
        judged = judge(hidden[:, :3] if part else made.detach() if detach else made)
        other = F.relu(1 + judged).mean() + F.relu(1 - judge(x)).mean()
        ours.zero_grad()
        if not keep_out:
            theirs.zero_grad()
        own.backward(retain_graph=True)
        if keep_out:
            theirs.zero_grad()
        other.backward()
        ours.step()
        theirs.step()


def test_a_critics_loss_that_reaches_all_of_the_generator_is_not_meant_for_it():
    with audit() as report:
        train_two()
    assert found(report) == [("foreign-gradients", "error")]
    assert report.findings[0].evidence["updates"] == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"detach": True}, []), ({"keep_out": False}, []), ({"part": True}, [("foreign-gradients", "undecided")])],
)
def test_a_loss_that_may_be_meant_for_both_is_no_error(options, expected):
    with audit() as report:
        train_two(**options)
    assert [each for each in found(report) if each[0] == "foreign-gradients"] == expected


# Windows that alternate, and none of which holds what the losses are divided by


@pytest.mark.parametrize(
    ("sizes", "by", "expected"),
    [
        ([7, 1] * 3, 4, True),
        ([5, 1] * 3, 3, True),
        ([3, 5, 1] * 3, 3, False),
        ([7, 1] * 3, 8, False),
        ([4, 2] * 3, 4, False),
        ([5, 2] * 3, 4, False),
    ],
)
def test_windows_that_hold_the_divisor_only_on_average_are_cut_in_the_wrong_place(sizes, by, expected):
    model, optimizer = with_sgd()
    with audit() as report:
        for size in sizes:
            for _ in range(size):
                ((x, y),) = data(1)
                (F.cross_entropy(model(x), y) / by).backward()
            update(optimizer)
    assert (("irregular-window", "error") in found(report)) == expected


def test_a_mean_times_the_numbers_of_a_row_is_divided_all_the_same():
    model, optimizer = with_sgd()
    with audit() as report:
        for size in [7, 1] * 3:
            for _ in range(size):
                x = torch.randn(4, 3)
                (F.binary_cross_entropy_with_logits(model(x), torch.rand(4, 2)) * 2 / 4).backward()
            update(optimizer)
    assert ("irregular-window", "error") in found(report)
    (finding,) = (each for each in report.findings if each.rule == "irregular-window")
    assert finding.message.endswith("none holds the 4 by which every loss is divided: 7, 1, 7, 1, 7, 1")


# Clipped after the first of two micro-batches, each with a line of its own


@contextmanager
def nothing():
    yield


@pytest.mark.parametrize(("divide_by", "loaders", "level"), [(2, 1, "error"), (1, 1, "undecided"), (2, 2, "undecided")])
def test_what_is_clipped_is_a_loss_of_its_own_unless_both_are_parts_of_one_mean(divide_by, loaders, level):
    model, optimizer = with_sgd(Wrapped())
    sets = [TensorDataset(torch.randn(16, 3), torch.randint(2, (16,))) for _ in range(loaders)]
    iterators = [iter(DataLoader(each, batch_size=2)) for each in sets]
    with audit() as report:
        for i in range(8):
            x, y = next(iterators[i % loaders])
            if i % 2 == 0:
                with nothing():
                    (F.cross_entropy(model(x), y) / divide_by).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            else:
                (F.cross_entropy(model(x), y) / divide_by).backward()
                update(optimizer)
    assert ("clip-timing", level) in found(report)


# An optimizer of the script's own


class Rated(Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def show_rate(self):
        return [group["lr"] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])


def test_an_optimizer_that_only_shows_its_rate_keeps_no_gradients():
    model = net()
    optimizer = Rated(model.parameters())
    with audit() as report:
        for i, (x, y) in enumerate(data(16)):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
    assert found(report)[0] == ("discarded-gradients", "error")
