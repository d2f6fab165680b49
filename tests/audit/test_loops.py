"""What the source says about the loop around a backward call; and optimizers that go their own way."""

import pytest
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from gradaudit.history import Backward, Window
from gradaudit.loops import go_over_something
from gradaudit.optimizers import may_collect, steps_its_own_way
from gradaudit.source import are_written

COUNTED = "for i, item in things:\n    loss.backward()\n    if i % 4 == 3:\n        optimizer.step()\n"
METHODS = """\
def learn(item):
    loss.backward()
def update():
    optimizer.step()
def train():
    for epoch in epochs:
        for {item} in {items}:
            learn(item)
        update()
"""


def says(tmp_path, text):
    """What a loop's text says of the windows that it makes."""
    file = tmp_path / f"train_{len(list(tmp_path.iterdir()))}.py"  # the lines of a file are read once
    file.write_text(text)
    line_of = {part: next(n for n, line in enumerate(text.split("\n"), 1) if part in line) for part in ("back", "step")}
    window = Window()
    window.where = f"{file}:{line_of['step']}"
    window.fresh.append(Backward(1, f"{file}:{line_of['back']}", ""))
    return go_over_something([window])


@pytest.mark.parametrize(
    ("head", "unknown"),
    [
        ("for agent in agents:", True),
        ("for _ in range(4):", True),
        ("while not done:", True),
        ("for _ in range(accumulation_steps):", False),
        ("for _ in range(args.grad_acc_steps):", False),
        ("for _ in range(n_acc):", False),
        ("for k in range(accuracies):", True),
        ("for micro in window:", False),
        ("for x, y in pairs:", False),
        ("for first in range(0, len(rays), 1024):", False),
        ("for item in zip(a.chunk(4), b.chunk(4)):", False),
    ],
)
def test_a_loop_of_its_own_goes_over_what_its_head_says(tmp_path, head, unknown):
    text = f"for epoch in epochs:\n    {head}\n        loss.backward()\n    optimizer.step()\n"
    assert says(tmp_path, text) == unknown


@pytest.mark.parametrize("body", ["x = next(stream)", "x, y = get_batch('train')", "x = rays[4 * k : 4 * k + 4]"])
def test_a_loop_whose_body_takes_a_batch_goes_over_micro_batches(tmp_path, body):
    text = f"for _ in epochs:\n    for k in range(4):\n        {body}\n        loss.backward()\n    optimizer.step()\n"
    assert not says(tmp_path, text)
    assert says(tmp_path, text.replace(body, "x = rays"))


def test_where_nobody_knows_the_place_of_the_step_the_loop_says_nothing(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("for agent in agents:\n    loss.backward()\n")
    window = Window()
    window.fresh.append(Backward(1, f"{file}:2", ""))
    assert not go_over_something([window])


def test_a_step_in_the_same_loop_counts_micro_batches_unless_it_waits_for_an_episodes_end(tmp_path):
    assert not says(tmp_path, COUNTED)
    assert says(tmp_path, COUNTED.replace("i % 4 == 3", "done or truncated"))


def test_what_calls_a_helper_tells(tmp_path):
    assert says(tmp_path, METHODS.format(item="agent", items="agents"))
    assert not says(tmp_path, METHODS.format(item="batch", items="group"))
    elsewhere = METHODS.replace("    learn(item)", "    unknown(item)")
    assert not says(tmp_path, elsewhere.format(item="agent", items="agents"))


def test_a_source_that_cannot_be_read_says_nothing(tmp_path):
    assert not says(tmp_path, "for agent in agents:\n    loss.backward()\n!optimizer.step()\n")


class Formula(Optimizer):
    def step(self, closure=None):
        pass


class Clipping(SGD):
    def step(self, closure=None):
        super().step()


class Collecting(Formula):
    def collect(self):
        self.sums = [p.grad for group in self.param_groups for p in group["params"]]


class CollectingByItself(Formula):
    sums = ()

    def collect(self):
        self._add()

    def _add(self):
        self.sums = [p.grad for group in self.param_groups for p in group["params"]]


class CollectingByAHelper(Formula):
    def collect(self):
        add_up(self.param_groups)


def add_up(groups):
    return [p.grad for group in groups for p in group["params"]]


class Scheduled(Formula):
    def get_lr(self):
        return []


class Shown(Formula):
    def show_lr(self):
        return [group["lr"] for group in self.param_groups]

    def update_lr(self, rate):
        for group in self.param_groups:
            group["lr"] = rate


@pytest.mark.parametrize(("kind", "own", "collects"), [
    (SGD, False, False), (Adam, False, False), (Formula, False, False), (Clipping, True, False),
    (Collecting, False, True), (CollectingByItself, False, True), (CollectingByAHelper, False, True),
    (Scheduled, False, False), (Shown, False, False),
])  # fmt: skip
def test_an_optimizer_of_the_scripts_own_is_asked_about_only_if_it_decides_on_gradients(kind, own, collects):
    parameters = list(nn.Linear(2, 1).parameters())
    optimizer = kind(parameters, {}) if issubclass(kind, Formula) else kind(parameters)
    assert (steps_its_own_way(optimizer), may_collect(optimizer)) == (own, collects)
    assert (steps_its_own_way(None), may_collect(None)) == (False, False)


def test_numbers_are_found_in_a_source_that_also_holds_one_too_large_for_a_float(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(f"prime = {10**400}\nalpha = 0.3\n")
    assert are_written([0.3, 0.7], [f"{file}:1"])
    assert not are_written([0.4], [f"{file}:1"])
