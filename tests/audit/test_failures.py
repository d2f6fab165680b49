"""Where the auditor itself fails, the training goes on without it, and no bug is claimed."""

import copy
import inspect
import re
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, AdamW, lr_scheduler
from torch.utils.data import DataLoader

from course_utils import record
from course_utils.record import TraceWriter
from gradaudit import AuditError, audit
from gradaudit.observe.gradients import Gradients
from gradaudit.observe.guard import Guard, ObserverFailure
from gradaudit.observe.observer import Observer
from gradaudit.probes.auditor import Auditor
from gradaudit.probes.ranks import Ranks
from gradaudit.probes.scaling import Scaling
from gradaudit.probes.schedules import Schedules
from gradaudit.rules import RULES
from hooked import hooks
from runs import bits, found, train, update


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    """Enough for DDP and all_reduce."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def everything():
    """Trains in all ways that the auditor listens to. Returns all that has been made, as bytes."""
    torch.manual_seed(0)
    parts = _scaled_and_clipped, _by_closure, _several_at_once, _by_hand, _on_a_rank
    return bits([[part() for part in parts], torch.get_rng_state()])


def _scaled_and_clipped():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer, scaler = AdamW(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=2.0**10)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 4)
    data = [(torch.randn(3), torch.tensor(k % 2)) for k in range(32)]
    for k, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        loss = F.cross_entropy(model(x), y) * (float("inf") if k == 5 else 0.5)
        scaler.scale(loss).backward()
        if k % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)  # an iterator, which must not be used up
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
    return model, copy.deepcopy(model), optimizer, scaler.state_dict(), scheduler.state_dict()


def _by_closure():
    model, losses = nn.Linear(3, 2), []
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x = torch.randn(4, 3)

    def closure():
        optimizer.zero_grad()
        losses.append(model(x).square().mean())
        losses[-1].backward()
        return losses[-1]

    return model, optimizer, [optimizer.step(closure) for _ in range(2)], losses


def _several_at_once():
    """A kept graph, some of the parameters, gradients in `.data`, a backward in a thread."""
    one, other = nn.Linear(3, 3), nn.Linear(3, 2)
    optimizer = SGD(one.parameters(), lr=0.1)
    optimizer.add_param_group({"params": other.parameters(), "lr": 0.2})
    for k in range(6):
        loss = other(one(torch.randn(4, 3))).square().mean()
        torch.autograd.grad(loss, [one.weight], retain_graph=True)
        torch.autograd.backward(iter([loss]), retain_graph=True)
        loss.backward()
        if k == 3:
            one.weight.grad.mul_(0.5)
        optimizer.step()
        if k == 2:
            one.zero_grad()
        elif k == 4:
            beside = threading.Thread(target=lambda: nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward())
            hook = one.weight.register_hook(lambda _, beside=beside: (beside.start(), beside.join())[:0] or None)
            one(torch.ones(1, 3)).square().mean().backward()
            hook.remove()
        optimizer.zero_grad()
    return one, other, optimizer


def _by_hand():
    model = nn.Linear(3, 2)
    for _ in range(4):
        model(torch.randn(4, 3)).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        model.zero_grad()
    assert not model.weight._backward_hooks, "a probe is left"
    return model


def _on_a_rank():
    model = DistributedDataParallel(nn.Linear(3, 2), gradient_as_bucket_view=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 3)).square().mean().backward()
        torch.distributed.all_reduce(model.module.weight.grad)
        update(optimizer)
    return model.module, optimizer


@pytest.fixture(scope="module")
def alone():
    """What the training makes without an auditor."""
    return everything()


class Fault(Exception):
    pass


@pytest.fixture
def broken(monkeypatch):
    """Breaks a function: its call of this number raises, at its start or end. Counts the calls."""

    def break_it(owner, name, call=1, late=False):
        original, calls = getattr(owner, name), []

        def function(*args, **kwargs):
            calls.append(name)
            if len(calls) < call:
                return original(*args, **kwargs)
            if late and inspect.isgeneratorfunction(original):
                return and_then_fail(original(*args, **kwargs))
            if late:
                original(*args, **kwargs)
            raise Fault(name)

        def and_then_fail(watching):
            yield from watching
            raise Fault(name)

        monkeypatch.setattr(owner, name, function)
        return calls

    return break_it


FAULTS = [  # where, in which call, and whether only when it has done what it does
    (Auditor, "attach", 1, True), (Auditor, "backward_begins", 3, True), (Auditor, "received", 1, False),
    (Auditor, "backward_ends", 3, False), (Auditor, "stepped", 3, False),
    (Auditor, "zeroed", 1, True), (Auditor, "changed", 1, False), (Auditor, "ended", 1, False),
    (Scaling, "_around_clip", 1, True), (Scaling, "_around_unscale", 1, False), (Schedules, "_around_step", 1, True),
    (Ranks, "_around_forward", 1, False), (Observer, "_before_step", 3, True),
    (Observer, "_receive", 3, False), (Observer, "_around_backward", 3, True), (Observer, "_look_at", 3, False),
    ("gradaudit.probes.graphs", "leaves", 1, False), ("gradaudit.probes.graphs", "watch_terms", 3, False),
    ("gradaudit.history", "sample", 1, False), ("gradaudit.probes.made", "caller_location", 1, False),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name", "call", "late"), FAULTS)
def test_a_fault_changes_nothing_in_the_training(owner, name, call, late, broken, alone):
    before = hooks()
    calls = broken(sys.modules.get(owner, owner), name, call, late)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with audit() as report:
            made = everything()
    assert made == alone
    assert hooks() == before
    assert calls
    (warning,) = [str(each.message) for each in caught if issubclass(each.category, ObserverFailure)]
    assert warning.startswith(f"The auditor has failed (test_failures.Fault: {name}, at ")
    assert warning.endswith("and your script goes on unwatched: please report this.")
    assert f"{name}, at" in report.failure
    assert not report.errors
    assert "The audit ended there" in " ".join(str(report).split())
    assert len(calls) <= call + 1, "the observer is not silent"


@pytest.mark.parametrize(
    ("owner", "name"),
    [(TraceWriter, "attach"), (TraceWriter, "received"), (TraceWriter, "backward_begins"), (Gradients, "compare")],
)
def test_a_record_that_fails_changes_nothing_in_the_training(owner, name, broken, alone):
    before = hooks()
    broken(owner, name, call=1 if name == "attach" else 2)
    with pytest.warns(ObserverFailure, match=r"^record\(\) has failed \(.*unwatched: please report this\.$") as caught:
        with record():
            made = everything()
    assert made == alone
    assert hooks() == before
    assert sum(issubclass(each.category, ObserverFailure) for each in caught) == 1


def test_what_another_observer_sees_is_complete(broken):
    broken(Auditor, "stepped")
    with pytest.warns(ObserverFailure), audit() as report, record() as trace:
        train()
    assert trace.updates() == [4, 4]
    assert not report.history.updates


@pytest.mark.parametrize("name", ["backward_begins", "backward_ends", "stepped", "zeroed"])
def test_an_interrupt_inside_the_auditor_ends_the_training(name, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    before = hooks()
    monkeypatch.setattr(Auditor, name, interrupted)
    with pytest.raises(KeyboardInterrupt), audit() as report:
        train()
    assert hooks() == before
    assert report.failure is None


def test_a_wrong_call_is_the_scripts_own_error():
    model = nn.Linear(2, 1)
    optimizer, scaler = SGD(model.parameters(), lr=0.1), GradScaler("cpu")
    wrong_calls = [
        lambda: torch.autograd.backward(),
        lambda: torch.autograd.backward(3),
        lambda: nn.utils.clip_grad_value_(model.parameters, 1.0),
        lambda: nn.utils.clip_grad_norm_(model.parameters, 1.0),
        lambda: scaler.unscale_(model),
        lambda: scaler.step(),
        lambda: optimizer.zero_grad(3, 4),
        lambda: optimizer.step(3),
        lambda: optimizer.add_param_group(3),
        lambda: torch.autograd.grad(),
    ]
    with audit() as report:
        for wrong in wrong_calls:
            with pytest.raises((TypeError, AttributeError, RuntimeError, AssertionError)):
                wrong()
    assert report.failure is None


def test_where_all_warnings_are_errors_the_training_goes_on(broken, capsys):
    broken(Auditor, "stepped")
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        with audit() as report:
            train()
    assert "The auditor has failed (test_failures.Fault: stepped" in capsys.readouterr().err
    assert report.failure


def test_the_warning_names_the_lines_and_points_at_the_scripts(monkeypatch):
    monkeypatch.setattr("gradaudit.history.sample", None)
    with pytest.warns(ObserverFailure) as caught, audit():
        train(1)
    (warning,) = caught
    words = r"\(TypeError: 'NoneType' object is not callable, at gradaudit/history.py:\d+, called from .*runs.py:"
    assert re.search(words, str(warning.message))
    assert warning.filename.endswith("runs.py")


def test_a_watch_is_closed_at_once_where_the_call_raises_and_may_let_a_call_pass():
    guard, noted = Guard("The auditor", "your script goes on unwatched"), []

    def watch(x):
        if x:
            try:
                yield
            finally:
                noted.append("end")

    call = guard.around(watch)(lambda x: 1 / (x - 1))
    assert call(0) == -1
    with pytest.raises(ZeroDivisionError) as caught:  # which keeps the frames alive
        call(1)
    assert (noted, guard.failure, caught.type) == (["end"], None, ZeroDivisionError)


# What is said


class Silent(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("error", [Silent(), ValueError("many\n" * 1_000)], ids=["no words", "too many"])
def test_an_error_without_words_or_with_too_many_is_told_in_one_line(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(Auditor, "stepped", fail)
    with pytest.warns(ObserverFailure) as caught, audit() as report:
        train()
    assert len(str(caught[0].message)) < 700
    assert "\n" not in report.failure


def test_an_error_before_the_failure_is_undecided(broken):
    broken(Auditor, "stepped", call=4)
    with pytest.warns(ObserverFailure), audit() as report:
        train(n=1, zero=False)
    assert found(report) == [("stale-gradients", "undecided")]
    with pytest.warns(ObserverFailure), pytest.raises(AuditError, match="ended"), audit(strict=True):
        train()
    text = " ".join(str(report).split())
    assert "4 backward calls; SGD: 4 updates, windows of 1 (inferred). The audit ended there" in text
    assert report.as_dict()["failure"] == report.failure
    assert "Fault: stepped" in text


def test_a_rule_that_fails_is_named_and_the_others_are_judged(monkeypatch):
    def fail(history):
        raise Fault("stale")

    monkeypatch.setattr(RULES["stale-gradients"], "find", fail)
    with pytest.warns(ObserverFailure, match="The auditor's rule stale-gradients has failed"), audit() as report:
        train(divide=False, zero=False)
    assert found(report) == [("loss-scale", "error")]
    assert report.failure.startswith("rule stale-gradients: test_failures.Fault: stale, at gradaudit/judging.py")
    assert "rule stale-gradients: test_failures.Fault" in " ".join(str(report).split())
