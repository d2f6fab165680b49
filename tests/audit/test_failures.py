"""Where the auditor itself fails, the training goes on as if it weren't there, and no bug is claimed."""

import copy
import inspect
import re
import signal
import sys
import threading
import warnings

import pytest
import torch
from runs import attached, train
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, AdamW, lr_scheduler
from torch.utils.data import DataLoader

import exhaustive
from course_utils import record
from gradaudit import AuditError, audit
from gradaudit.observe.guard import ObserverFailure
from gradaudit.observe.observer import Lane, Listener, Observer
from gradaudit.observe.trace import _TraceWriter
from gradaudit.page import as_page
from gradaudit.rules import RULES
from gradaudit.text import as_annotations
from gradaudit.writer import HistoryWriter


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    """Enough for DDP and all_reduce."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def everything():
    """Trains in all the ways that the auditor listens to. Returns all that has been made, as bytes."""
    torch.manual_seed(0)
    made = []
    for part in (_scaled_and_clipped, _by_closure, _several_at_once, _by_hand, _on_a_rank):
        made.append(part())
    return [_bits(thing) for thing in made] + [torch.get_rng_state().tolist()]


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
    model = nn.Linear(3, 2)
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x, y, losses = torch.randn(4, 3), torch.randint(2, (4,)), []

    def closure():
        optimizer.zero_grad()
        losses.append(F.cross_entropy(model(x), y))
        losses[-1].backward()
        return losses[-1]

    return model, optimizer, [optimizer.step(closure) for _ in range(2)], losses


def _several_at_once():
    """A graph that is kept, a part of the parameters, gradients in `.data`, a backward call in another thread."""
    one, other = nn.Linear(3, 3), nn.Linear(3, 2)
    optimizer = SGD(one.parameters(), lr=0.1)
    optimizer.add_param_group({"params": other.parameters(), "lr": 0.2})
    for k in range(6):
        loss = F.mse_loss(other(one(torch.randn(4, 3))), torch.zeros(4, 2))
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
            F.mse_loss(one(torch.ones(1, 3)), torch.zeros(1, 3)).backward()
            hook.remove()
        optimizer.zero_grad()
    return one, other, optimizer


def _by_hand():
    model = nn.Linear(3, 2)
    for _ in range(4):
        F.mse_loss(model(torch.randn(4, 3)), torch.zeros(4, 2)).backward()
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
        optimizer.step()
        optimizer.zero_grad()
    return model.module, optimizer


def _bits(thing):
    if hasattr(thing, "state_dict"):
        thing = thing.state_dict()
    if isinstance(thing, torch.Tensor):
        return thing.detach().contiguous().view(-1).view(torch.uint8).tolist()
    if isinstance(thing, dict):
        return {str(key): _bits(value) for key, value in thing.items()}
    return [_bits(each) for each in thing] if isinstance(thing, list | tuple) else repr(thing)


@pytest.fixture(scope="module")
def alone():
    """What the training makes without an auditor."""
    return everything()


class Fault(Exception):
    pass


@pytest.fixture
def broken(monkeypatch):
    """Breaks a function: its call of this number raises an error, before anything or at its end. Counts the calls."""

    def break_it(owner, name, call=1, late=False):
        original, calls = getattr(owner, name), []

        def function(*args, **kwargs):
            calls.append(name)
            if len(calls) < call or (late and not inspect.isgeneratorfunction(original)):
                result = original(*args, **kwargs)
                if len(calls) < call:
                    return result
            if late and inspect.isgeneratorfunction(original):
                return and_then_fail(original(*args, **kwargs))
            raise Fault(name)

        def and_then_fail(watching):
            yield from watching
            raise Fault(name)

        monkeypatch.setattr(owner, name, function)
        return calls

    return break_it


LISTENS = sorted({name for name in vars(Listener) if callable(getattr(Listener, name))} - {"__module__"})
OF_WRITER = [
    (HistoryWriter, name)
    for name in sorted(vars(HistoryWriter))
    if (name in LISTENS or name.startswith("_around") or name.startswith("_after") or name.startswith("_before"))
    # Lanes are made with the block, and scale_grads is for pipelines of several ranks.
    and name not in ("gave_up", "zeroed_in_part", "lane_type", "_around_scale_grads")
]
OF_OBSERVER = [(Observer, name) for name in ("look", "lane_of", "name", "step", "inside", "_receive", "_zeroed")] + [
    (Observer, name) for name in vars(Observer) if name.startswith(("_around", "_before", "_after", "_end_lanes"))
    and "forward" not in name
]  # fmt: skip
WRITER = "gradaudit.writer"
HELPERS = [
    (WRITER, "watch_terms"), (WRITER, "watch_memory"), (WRITER, "caller_location"), (WRITER, "where"),
    (WRITER, "leaves"), (WRITER, "mark_forward"), (WRITER, "earlier_forward"), (WRITER, "number"),
    (WRITER, "agreement"), (WRITER, "schedule_length"), (WRITER, "_rates"), (WRITER, "_is_hooked"),
    ("gradaudit.lanes", "sample"), ("gradaudit.lanes", "move"),
    ("gradaudit.probe", "find_losses"), ("gradaudit.named", "_named_tensors"),
    ("gradaudit.overwriting", "_address"), ("gradaudit.graphs", "forward_passes"),
    ("gradaudit.epochs", "_length"), ("gradaudit.observe.observer", "any_nonzero"),
    ("gradaudit.observe.observer", "living"),
]  # fmt: skip
FAULTS = [
    (owner, name, call, late)
    for owner, name in [*OF_WRITER, *OF_OBSERVER, *HELPERS]
    for call in (1, 3)
    for late in (False, True)
]
ALWAYS = [
    fault
    for fault in FAULTS
    if fault[1:] in [("backward_begins", 3, True), ("stepped", 3, False), ("zeroed", 1, True), ("attach", 1, True),
                     ("_around_clip", 1, True), ("_around_scheduler_step", 1, True), ("_around_unscale", 1, False),
                     ("sample", 1, False), ("_before_step", 3, True), ("_address", 3, False), ("ended", 1, False)]
]  # fmt: skip


def resolved(owner):
    return sys.modules[owner] if isinstance(owner, str) else owner


@pytest.mark.parametrize(("owner", "name", "call", "late"), exhaustive.mark(FAULTS, but=ALWAYS))
def test_a_fault_changes_nothing_in_the_training(owner, name, call, late, broken, alone):
    before = attached()
    calls = broken(resolved(owner), name, call, late)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with audit() as report:
            made = everything()
    assert made == alone
    assert attached() == before
    assert calls
    if len(calls) < call:
        pytest.skip(f"called {len(calls)} times")
    (warning,) = [str(each.message) for each in caught if issubclass(each.category, ObserverFailure)]
    assert warning.startswith(f"The auditor has failed (test_failures.Fault: {name}, at ")
    assert warning.endswith("and your script goes on unwatched: please report this.")
    assert f"{name}, at" in report.failure
    assert not report.errors
    assert "The audit ended there" in " ".join(str(report).split())
    assert len(calls) <= call + 1, "the observer is not silent"


OF_RECORD = [(_TraceWriter, name) for name in vars(_TraceWriter) if name in LISTENS or name.startswith("_add")]


@pytest.mark.parametrize(("owner", "name"), [*OF_RECORD, (Observer, "_before_forward"), (Lane, "compare")])
def test_a_record_that_fails_changes_nothing_in_the_training(owner, name, broken, alone):
    before = attached()
    broken(owner, name, call=2 if name not in ("attach", "__init__") else 1)
    with pytest.warns(ObserverFailure, match=r"^record\(\) has failed \(.*unwatched: please report this\.$") as caught:
        with record():
            made = everything()
    assert made == alone
    assert attached() == before
    assert sum(issubclass(each.category, ObserverFailure) for each in caught) == 1


def test_what_another_observer_sees_is_complete(broken):
    broken(HistoryWriter, "stepped")
    with pytest.warns(ObserverFailure), audit() as report, record() as trace:
        train()
    assert trace.windows() == [4, 4]
    assert not report.history.windows


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("name", ["backward_begins", "backward_ends", "stepped", "zeroed"])
def test_an_interrupt_inside_the_auditor_ends_the_training(name, error, monkeypatch):
    def interrupted(*args):
        raise error

    before = attached()
    monkeypatch.setattr(HistoryWriter, name, interrupted)
    with pytest.raises(error), audit() as report:
        train()
    assert attached() == before
    assert report.failure is None


@pytest.mark.skipif(not hasattr(signal, "raise_signal") or sys.platform == "win32", reason="needs SIGUSR1")
def test_what_a_signal_of_the_scripts_raises_is_the_scripts(monkeypatch):
    def out_of_time(*_):
        raise TimeoutError("over")

    handler = signal.signal(signal.SIGUSR1, out_of_time)
    monkeypatch.setattr(HistoryWriter, "stepped", lambda *_: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(TimeoutError, match="over"), audit() as report:
            train()
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert report.failure is None


@pytest.mark.parametrize("name", ["backward_begins", "_around_clip", "received"])
def test_an_error_of_the_scripts_goes_through_as_it_is(name, broken):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("of the script")

    def parameters():
        yield model.weight
        raise ArithmeticError("of the script")

    model = nn.Linear(2, 1)

    def run():
        with pytest.raises(ArithmeticError) as caught:
            Failing.apply(model(torch.ones(1, 2))).sum().backward()
        with pytest.raises(ArithmeticError) as clipped:
            nn.utils.clip_grad_value_(parameters(), 1.0)
        model(torch.ones(1, 2)).sum().backward()
        nn.utils.clip_grad_value_(model.weight, 1.0)
        return caught.value, clipped.value

    broken(HistoryWriter, name)
    with pytest.warns(ObserverFailure), audit():
        errors = run()
    assert [error.__context__ for error in errors] == [None, None]


def test_a_wrong_call_is_the_scripts_own_error():
    model = nn.Linear(2, 1)
    optimizer, scaler = SGD(model.parameters(), lr=0.1), GradScaler("cpu")
    wrong_calls = [
        lambda: torch.autograd.backward(),
        lambda: torch.autograd.backward(3),
        lambda: nn.utils.clip_grad_value_(),
        lambda: nn.utils.clip_grad_value_(model.parameters, 1.0),
        lambda: nn.utils.clip_grad_norm_(model.parameters, 1.0),
        lambda: scaler.unscale_(),
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
    broken(HistoryWriter, "stepped")
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        with audit() as report:
            train()
    assert "The auditor has failed (test_failures.Fault: stepped" in capsys.readouterr().err
    assert report.failure


def test_the_warning_names_the_lines_and_points_at_the_scripts(monkeypatch):
    monkeypatch.setattr("gradaudit.lanes.sample", None)
    with pytest.warns(ObserverFailure) as caught, audit():
        train(1)
    (warning,) = caught
    words = r"\(TypeError: 'NoneType' object is not callable, at gradaudit/lanes.py:\d+, called from .*runs.py:"
    assert re.search(words, str(warning.message))
    assert warning.filename.endswith("runs.py")


# What is said


def test_an_error_before_the_failure_is_undecided(broken, monkeypatch):
    monkeypatch.setattr("gradaudit.page._drawing", lambda report: "")  # takes a second
    broken(HistoryWriter, "stepped", call=4)
    with pytest.warns(ObserverFailure), audit() as report:
        train(n=1, zero=False)
    assert [(finding.rule, finding.level) for finding in report.findings] == [("stale-gradients", "undecided")]
    with pytest.warns(ObserverFailure), pytest.raises(AuditError, match="ended"), audit(strict=True):
        train()
    text = " ".join(str(report).split())
    assert "4 backward calls; SGD: 3 updates, windows of 1 (inferred). The audit ended there" in text
    assert report.as_dict()["failure"] == report.failure
    for shown in (as_page(report, "title"), report._repr_html_(), as_annotations(report)):
        assert "Fault: stepped" in shown
        assert "The audit ended there" in shown


def test_where_nothing_was_found_before_the_failure_it_does_not_say_that_nothing_is_wrong(broken):
    broken(HistoryWriter, "stepped", call=2)
    with pytest.warns(ObserverFailure), audit() as report:
        train()
    assert not report.findings
    assert "Nothing was found in the part that was watched." in str(report)


@pytest.mark.parametrize("name", exhaustive.mark(RULES, but=["stale-gradients"]))
def test_a_rule_that_fails_is_named_and_the_others_are_judged(name, monkeypatch):
    def found():
        with audit() as report:
            train(n=1, zero=False)
            train(divide=False)
        return report

    def fail(history):
        raise Fault(name)

    expected = [(each.rule, each.level) for each in found().findings if each.rule != name]
    monkeypatch.setitem(RULES, name, fail)
    with pytest.warns(ObserverFailure, match=f"The auditor's rule {name} has failed"):
        report = found()
    assert [(each.rule, each.level) for each in report.findings] == expected
    assert report.failure.startswith(f"rule {name}: test_failures.Fault: {name}, at gradaudit/rules/__init__.py")
    assert f"rule {name}: test_failures.Fault" in " ".join(str(report).split())
