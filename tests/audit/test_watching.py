"""The auditor: its probe, and loops that are hard to see through."""

import gc
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from runs import data, found, net, train, update, with_sgd
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, SparseAdam

from gradaudit import audit
from gradaudit.history import AuditedCall
from gradaudit.observe.gradients import any_nonzero
from gradaudit.observe.ledger import Kept
from gradaudit.watch.losses import watch_terms

CODE = Path(__file__).read_text(encoding="utf-8").splitlines()


def python_calls(steps):
    """How many functions written in Python are called, by the training and by all that watches it."""
    model, batch = net(), (torch.randn(4, 3), torch.randint(2, (4,)))
    optimizer, calls = SGD(model.parameters(), lr=0.1), 0

    def step():
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        update(optimizer)

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    for _ in range(30):  # the first are looked at more closely
        step()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(steps):
            step()
    finally:
        sys.setprofile(before)
    return calls / steps


# The probe


def terms(root, scale=1.0):
    call = AuditedCall(1, "", "", scaled=scale)
    watch_terms(root, "test", call, lambda register, note: register(note))
    root.backward()
    return call.terms


def cross_entropy(size=4, **options):
    return F.cross_entropy(net()(torch.randn(size, 3)), torch.randint(2, (size,)), **options)


@pytest.mark.parametrize(
    ("make", "coefficient"),
    [
        (lambda loss: loss, 1.0),
        (lambda loss: loss / 4, 0.25),
        (lambda loss: loss / torch.tensor(4.0) / 2, 0.125),
        (lambda loss: 0.3 * loss + 2 * loss.detach(), 0.3),
        (lambda loss: -(-loss * 0.5), 0.5),
        (lambda loss: torch.stack([loss, torch.zeros(())]).mean(), 0.5),
    ],
)
def test_the_coefficient_is_what_the_code_made_of_the_loss(make, coefficient):
    (term,) = terms(make(cross_entropy()))
    assert (term.reduction, term.count) == ("mean", 4)
    assert term.coefficient == pytest.approx(coefficient)
    assert term.per_item == pytest.approx(coefficient / 4)


def test_the_scalers_factor_is_taken_out():
    scaler = GradScaler("cpu", init_scale=1024.0)
    (term,) = terms(scaler.scale(cross_entropy() / 4), scale=1024.0)
    assert term.coefficient == pytest.approx(0.25)


def test_several_losses_have_a_coefficient_each_and_a_sum_counts_per_item():
    both = terms(0.5 * cross_entropy(3) + 7.5 * F.mse_loss(net()(torch.randn(2, 3)), torch.zeros(2, 2)))
    assert {(term.name, term.coefficient, term.count) for term in both} == {("NllLoss", 0.5, 3), ("MseLoss", 7.5, 4)}
    (total,) = terms(cross_entropy(reduction="sum") / 10)
    assert (total.reduction, total.per_item) == ("sum", pytest.approx(0.1))


def with_its_own_hook(loss):
    loss.register_hook(lambda gradient: gradient / 4)
    loss.backward()


@pytest.mark.parametrize(
    ("backward", "coefficient"),
    [
        (lambda loss: loss.backward(), 1.0),
        (lambda loss: loss.backward(torch.tensor(0.25)), 0.25),
        (lambda loss: torch.autograd.backward(loss, grad_tensors=torch.tensor(0.25)), 0.25),
        (with_its_own_hook, 0.25),
        (lambda loss: torch.autograd.backward([loss, loss / 4]), 1.25),
    ],
)
def test_the_coefficient_of_a_loss_that_backward_is_called_on(backward, coefficient):
    with audit() as report:
        backward(cross_entropy())
    assert {term.coefficient for term in report.history.calls[0].terms} == {coefficient}


def test_ignored_targets_do_not_count():
    target = torch.tensor([1, -100, 0, -100])
    (term,) = terms(F.cross_entropy(net()(torch.randn(4, 3)), target))
    assert term.count == 2


# Loops that are hard to see through


def test_nested_audits_see_the_same_and_only_what_is_theirs():
    with audit() as outer:
        train(divide=False)
        with audit() as inner:
            train(divide=False)
        train(divide=False)
    assert found(inner) == [("loss-scale", "error")]
    assert inner.history.calls.total == 8
    assert outer.history.calls.total == 24
    assert set(found(outer)) == {("loss-scale", "error")}


def test_a_step_that_calls_the_inherited_step_makes_one_update():
    SGD([torch.zeros(1)], lr=0.1)  # so that SGD.step itself is hooked

    class Noted(SGD):
        def zero_grad(self, set_to_none=True):  # of its own
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None

        def step(self, closure=None):
            return super().step(closure)

    model = net()
    optimizer = Noted(model.parameters(), lr=0.1)
    with audit() as report:
        for x, y in data():
            F.cross_entropy(model(x), y).backward()
            update(optimizer)
        for x, y in data():

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert report.findings == []
    assert report.history.updates_made == 16


def test_a_script_may_put_a_zero_grad_of_its_own_and_keeps_it():
    original = SGD.zero_grad

    def mine(self, set_to_none=True):
        return original(self, set_to_none)

    try:
        with audit() as report:
            torch.optim.Optimizer.zero_grad = mine
            train()
        assert report.findings == []
        assert vars(torch.optim.Optimizer)["zero_grad"] is mine
    finally:
        torch.optim.Optimizer.zero_grad = original


def test_a_wrapper_around_an_optimizer_is_no_optimizer():
    class Wrapper(torch.optim.Optimizer):  # as accelerate's
        def __init__(self, inner):
            self.inner = inner
            self.param_groups, self.defaults = inner.param_groups, inner.defaults

        def step(self, closure=None):
            self.inner.step(closure)

        def zero_grad(self, set_to_none=True):
            self.inner.zero_grad(set_to_none)

    model = net()
    optimizer = Wrapper(SGD(model.parameters(), lr=0.1))
    with audit() as report:
        for x, y in data():
            F.cross_entropy(model(x), y).backward()
            update(optimizer)
    assert report.findings == []
    assert [(each.name, each.made) for each in report.history.records] == [("SGD", 8)]


def test_sparse_gradients():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = SparseAdam(model.parameters())
    with audit() as report:
        for _ in range(4):
            F.mse_loss(model(torch.tensor([1, 2])), torch.zeros(2, 2)).backward()
            optimizer.step()
            model.weight.grad.zero_()
    assert report.findings == []
    assert report.history.updates_made == 4


def test_a_schedule_of_the_scripts_own_is_seen():
    with audit() as report:

        class Own(torch.optim.lr_scheduler.LRScheduler):
            def step(self, epoch=None):
                self._step_count = 1
                self.optimizer.param_groups[0]["lr"] *= 0.9

            def get_lr(self):
                return self.base_lrs

        model, optimizer = with_sgd()
        schedule = Own(optimizer)
        for i, (x, y) in enumerate(data()):
            (F.cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                update(optimizer)
            schedule.step()
        step = vars(Own)["step"]
    assert found(report) == [("scheduler-cadence", "undecided")]
    assert vars(Own)["step"] is not step


def test_gradients_of_an_earlier_cell_are_nobodys_business():
    old, model = net(), nn.ModuleList([net(), net()])
    old(torch.ones(1, 3)).sum().backward()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for x, y in data():
            F.cross_entropy(model[0](x), y).backward()
            update(optimizer)
    assert found(report) == [("orphan-parameters", "advice")]


def test_the_audit_keeps_no_model_alive():
    with audit():
        model, optimizer = with_sgd()
        dead = weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.weight)
        F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
        update(optimizer)
        del model, optimizer
        gc.collect()
        train()
        assert [thing() for thing in dead] == [None] * 3


def test_a_long_run_is_kept_in_part(monkeypatch):
    monkeypatch.setattr(Kept, "half", 10)
    with audit() as report:
        train(n=2, divide=False, count=200)
    history = report.history
    assert (len(history.updates), history.updates_made, len(history.calls)) == (20, 100, 20)
    assert [update.number for update in history.updates] == [*range(1, 11), *range(91, 101)]
    assert "100 updates, windows of 2" in report.summary()
    assert "first and the last 10 updates" in report.summary()
    assert report.rules == ["loss-scale"]
    with audit() as report:
        train(n=1, zero=False, count=100)
    assert report.findings[0].evidence["update"] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(), (3,), (200, 60)])
def test_whether_a_gradient_is_zero(shape, dtype):
    grad = torch.zeros(shape, dtype=dtype)
    assert not any_nonzero(grad)
    assert not any_nonzero(-grad)
    assert not any_nonzero(grad.to_sparse())
    assert not any_nonzero(nn.Parameter(grad))  # read as on a GPU
    for value in (1e-30, float("nan"), float("inf")):
        grad.view(-1)[-1] = value
        assert any_nonzero(grad)
        assert any_nonzero(nn.Parameter(grad))
        assert any_nonzero(grad.mT if grad.dim() > 1 else grad)
    assert not any_nonzero(torch.zeros(0, 3))
    assert any_nonzero(torch.zeros(3, device="meta"))  # nobody knows


def test_an_audited_step_makes_few_calls():
    plain = python_calls(10)
    with audit():
        audited = python_calls(10)
    assert 20 < audited - plain <= 85  # with Python 3.11; a time would not be the same twice


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_training_in_another_thread_is_seen():
    with audit() as report:
        in_threads(lambda: train(divide=False))
    assert found(report) == [("loss-scale", "error")]


def test_where_trainings_overlap_nothing_is_certain():
    barrier = threading.Barrier(2, timeout=10)

    class Meet(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            barrier.wait()
            return gradient

    def one():
        model, optimizer = with_sgd()
        for x, y in data(3):
            Meet.apply(F.cross_entropy(model(x), y)).backward()
            optimizer.step()

    with audit() as report:
        in_threads(one, one)
    assert report.errors == []
    assert "threads overlapped" in str(report)


def test_where_names_the_users_line_beneath_a_library(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "a_trainer.py").write_text("def backward(loss):\n    loss.backward()\n")
    monkeypatch.syspath_prepend(str(folder))
    import a_trainer

    model, optimizer = with_sgd()
    with audit() as report:
        for i, (x, y) in enumerate(data()):
            a_trainer.backward(F.cross_entropy(model(x), y))
            if i % 4 == 3:
                update(optimizer)
    (finding,) = report.findings
    assert finding.where.startswith(f"{__file__}:")
    assert "a_trainer.backward(" in CODE[int(finding.where.rsplit(":")[-1]) - 1]
