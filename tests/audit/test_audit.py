"""The auditor: its probe, its inference, its report, and loops that are hard to see through."""

import gc
import json
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, SparseAdam

from course_utils.audit import AuditError, Finding, audit, rules, writer
from course_utils.audit.history import Backward, Kept
from course_utils.audit.probe import watch_terms
from course_utils.observe.observer import any_nonzero

pytestmark = pytest.mark.usefixtures("quick_scans")
CODE = Path(__file__).read_text(encoding="utf-8").splitlines()


def net():
    return nn.Linear(3, 2)


def data(count=8, size=4):
    return [(torch.randn(size, 3), torch.randint(2, (size,))) for _ in range(count)]


def train(n=4, divide=True, count=8, zero=True):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(data(count)):
        loss = F.cross_entropy(model(x), y)
        (loss / n if divide else loss).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            if zero:
                optimizer.zero_grad()


def python_calls(steps):
    """How many functions written in Python are called, by the training and by all that watches it."""
    model, batch = net(), (torch.randn(4, 3), torch.randint(2, (4,)))
    optimizer, calls = SGD(model.parameters(), lr=0.1), 0

    def step():
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()

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


def found(report):
    return [(finding.rule, finding.level) for finding in report.findings]


# The probe


def terms(root, scale=1.0):
    call = Backward(1, "", "", scaled=scale)
    watch_terms(root, "test", call)
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
    assert {term.coefficient for term in report.history.backwards[0].terms} == {coefficient}


def test_ignored_targets_do_not_count():
    target = torch.tensor([1, -100, 0, -100])
    (term,) = terms(F.cross_entropy(net()(torch.randn(4, 3)), target))
    assert term.count == 2


def test_micro_batches_of_2_30_6_and_10_have_weights_of_6_04_2_and_12():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for _ in range(3):
            for size in (2, 30, 6, 10):
                (F.cross_entropy(model(torch.randn(size, 3)), torch.randint(2, (size,))) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
    (finding,) = report.findings
    assert (finding.rule, finding.level) == ("token-weights", "error")
    assert finding.evidence["counts"] == [2, 30, 6, 10]
    assert finding.evidence["weights"] == pytest.approx([6.0, 0.4, 2.0, 1.2])
    assert "6, 0.4, 2, 1.2 times" in finding.message


def test_a_data_sets_short_last_batch_is_only_worth_advice():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for _ in range(3):
            for size in (4, 4, 4, 2):
                (F.cross_entropy(model(torch.randn(size, 3)), torch.randint(2, (size,))) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert found(report) == [("token-weights", "advice")]


# Windows, inferred and declared


@pytest.mark.parametrize(("sizes", "n"), [((4, 4, 1), 4), ((1, 4), 4), ((4, 1), 4), ((1, 1, 2), 1), ((3, 5, 5), 5)])
def test_the_window_is_the_most_frequent_and_of_two_the_larger(sizes, n):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for size in sizes:
            for x, y in data(size):
                (F.cross_entropy(model(x), y) / size).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert report.history.size("SGD") == n
    assert f"SGD: {len(sizes)} updates of {n} micro-batch{'es' if n > 1 else ''} (inferred)" in str(report)


@pytest.mark.parametrize("keyword", [True, False])
def test_a_declared_window_decides(keyword):
    with audit(window=4 if keyword else None) as report:
        if not keyword:
            report.declare_window(4)
        train(n=2)
    assert [f.rule for f in report.errors] == ["irregular-window"]
    assert "declared: 4" in report.findings[0].message
    assert "(declared)" in report.summary()
    with audit(window=2) as report:
        train(n=2)
    assert report.findings == []


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "4"])
def test_a_window_is_a_whole_number(n):
    with pytest.raises(ValueError, match="whole number of micro-batches"), audit(window=n):
        raise AssertionError
    with audit() as report, pytest.raises(ValueError, match="whole number of micro-batches"):
        report.declare_window(n)


def test_two_lines_that_take_turns_are_one_window():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for i, (x, y) in enumerate(data(12)):
            loss = F.cross_entropy(model(x), y)
            if (i + 1) % 4:
                loss.backward()
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    (finding,) = report.errors
    assert (finding.rule, finding.evidence["window"], finding.evidence["factor"]) == ("loss-scale", 4, 4.0)


# The report


def test_the_report_as_text_names_rule_level_place_and_mend():
    with audit() as report:
        train(divide=False)
    text = str(report)
    assert text.startswith("8 backward calls; SGD: 2 updates of 4 micro-batches (inferred).")
    line = next(k for k, text in enumerate(CODE, 1) if "if divide else loss" in text)
    assert "\nERROR loss-scale  " in text
    assert f"test_audit.py:{line}\n" in text
    assert "4.0 times too large" in text
    assert "\n  mend: divide each loss" in text
    assert repr(report) == "<Report of 1 error among 1 finding>"
    assert report.rules == ["loss-scale"]


def test_a_report_with_nothing_in_it():
    with audit() as report:
        pass
    assert str(report) == "0 backward calls and no step of an optimizer were seen.\n\nNothing was found."
    with audit() as report:
        train()
    assert "Nothing was found." in str(report)
    assert "Nothing was found." in report._repr_html_()


def test_the_report_as_html_is_escaped():
    with audit() as report:
        train(divide=False)
    report.findings.append(Finding("rule", "advice", "a < b", "<script>", "x.py:1"))
    html = report._repr_html_()
    assert "<b>loss-scale</b>" in html
    assert "a &lt; b" in html.lower()
    assert "<script>" not in html


def test_the_report_as_json_has_the_keys_that_are_promised():
    with audit() as report:
        train(divide=False)
    result = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert result["window"] == {"SGD": 4}
    (finding,) = result["findings"]
    assert finding.keys() == {"rule", "level", "message", "evidence", "fix", "where"}


def test_the_ledger_marks_the_finding_at_its_update():
    with audit() as report:
        train(n=1, zero=False)
    figure = report.ledger()
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert "stale-gradients" in texts
    events = report.history.trace.events
    second_step = [place for place, event in enumerate(events) if event.kind == "step"][1]
    assert report._place(report.findings[0]) == second_step


def test_strict_raises_with_the_report():
    with pytest.raises(AuditError, match="loss-scale") as caught, audit(strict=True) as report:
        train(divide=False)
    assert caught.value.report is report
    with audit(strict=True):
        train()
    with pytest.raises(ZeroDivisionError), audit(strict=True):  # noqa: PT012
        train(divide=False)
        1 / 0  # noqa: B018


def test_a_rule_is_added_in_a_few_lines(monkeypatch):
    def many_updates(history):
        for lane in history.lanes:
            if len(history.of(lane)) > 1:
                yield Finding("many-updates", rules.ADVICE, "more than one", "make one", lane=lane)

    monkeypatch.setattr(rules, "RULES", [*rules.RULES, many_updates])
    with audit() as report:
        train()
    assert found(report) == [("many-updates", "advice")]


# Loops that are hard to see through


def test_nested_audits_see_the_same_and_only_what_is_theirs():
    with audit() as outer:
        train(divide=False)
        with audit() as inner:
            train(divide=False)
        train(divide=False)
    assert found(inner) == [("loss-scale", "error")]
    assert inner.history.backwards.total == 8
    assert outer.history.backwards.total == 24
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
            optimizer.step()
            optimizer.zero_grad()
        for x, y in data():

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert report.findings == []
    assert report.history.updates == {"Noted": 16}


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
            optimizer.step()
            optimizer.zero_grad()
    assert report.findings == []
    assert report.history.updates == {"SGD": 8}


def test_sparse_gradients():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = SparseAdam(model.parameters())
    with audit() as report:
        for _ in range(4):
            F.mse_loss(model(torch.tensor([1, 2])), torch.zeros(2, 2)).backward()
            optimizer.step()
            model.weight.grad.zero_()
    assert report.findings == []
    assert report.history.updates == {"SparseAdam": 4}


def test_a_schedule_of_the_scripts_own_is_seen():
    with audit() as report:

        class Own(torch.optim.lr_scheduler.LRScheduler):
            def step(self, epoch=None):
                self._step_count = 1

            def get_lr(self):
                return self.base_lrs

        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        schedule = Own(optimizer)
        for i, (x, y) in enumerate(data()):
            (F.cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
        step = vars(Own)["step"]
    assert report.rules == ["scheduler-cadence"]
    assert vars(Own)["step"] is not step


def test_gradients_of_an_earlier_cell_are_nobodys_business():
    old, model = net(), nn.ModuleList([net(), net()])
    old(torch.ones(1, 3)).sum().backward()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for x, y in data():
            F.cross_entropy(model[0](x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert found(report) == [("orphan-parameters", "advice")]


def test_the_audit_keeps_no_model_alive():
    with audit():
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        dead = weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.weight)
        F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
        optimizer.step()
        optimizer.zero_grad()
        del model, optimizer
        gc.collect()
        train()
        assert [thing() for thing in dead] == [None] * 3


def test_a_long_run_is_kept_in_part(monkeypatch):
    monkeypatch.setattr(Kept, "half", 10)
    with audit() as report:
        train(n=2, divide=False, count=200)
    history = report.history
    assert (len(history.windows), history.windows.total, len(history.backwards)) == (20, 100, 20)
    assert len(history.trace.events) == 20
    assert [window.number for window in history.windows] == [*range(1, 11), *range(91, 101)]
    assert "100 updates of 2" in str(report)
    assert "first and the last 10 updates" in str(report)
    assert report.rules == ["loss-scale"]
    with audit() as report:
        train(n=1, zero=False, count=100)
    assert report.findings[0].evidence["update"] == 2


@pytest.mark.parametrize("steps", [True, False])
def test_while_it_runs_a_long_run_is_kept_in_part(monkeypatch, steps):
    monkeypatch.setattr(Kept, "half", 10)
    monkeypatch.setattr(writer, "_TRIM_EVERY", 7)
    p = nn.Parameter(torch.ones(2))
    optimizer = SGD([p], lr=0.1)
    with audit() as report:
        for _ in range(100):
            p.sum().backward()
            if steps:
                optimizer.step()
        for kept in (report.history.backwards, report.history.windows, report.history.trace.events):
            assert len(kept) <= 20 + 2 * 7
    assert report.history.backwards.total == 100
    assert report.history.windows.total == 100 * steps
    (name,) = report.history.never
    assert len(report.history.leftover.get(name, [])) == (0 if steps else 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(), (3,), (200, 60)])
def test_whether_a_gradient_is_zero(shape, dtype):
    grad = torch.zeros(shape, dtype=dtype)
    assert not any_nonzero(grad)
    assert not any_nonzero(-grad)
    assert not any_nonzero(grad.to_sparse())
    for value in (1e-30, float("nan"), float("inf")):
        grad.view(-1)[-1] = value
        assert any_nonzero(grad)
        assert any_nonzero(grad.mT if grad.dim() > 1 else grad)
    assert not any_nonzero(torch.zeros(0, 3))


def test_an_audited_step_makes_few_calls():
    plain = python_calls(10)
    with audit():
        audited = python_calls(10)
    assert 20 < audited - plain <= 52  # 50 with Python 3.11; a time would not be the same twice


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
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
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

    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for i, (x, y) in enumerate(data()):
            a_trainer.backward(F.cross_entropy(model(x), y))
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    (finding,) = report.findings
    assert finding.where.startswith(f"{__file__}:")
    assert "a_trainer.backward(" in CODE[int(finding.where.rsplit(":")[-1]) - 1]


def test_compiled_steps_are_left_alone():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        step = torch.compile(model, backend="eager")
        for x, y in data(4):
            F.cross_entropy(step(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert report.findings == []


@pytest.mark.parametrize(("sizes", "error"), [((3, 4, 1), True), ((4, 4, 1), False), ((2, 4), True)])
def test_windows_that_come_again_in_every_epoch_may_be_short_only_at_its_end(sizes, error):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for size in sizes * 3:
            for x, y in data(size):
                (F.cross_entropy(model(x), y) / size).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert ("irregular-window" in report.rules) == error


def test_windows_are_not_judged_beside_the_foreign_gradients_that_fill_them():
    judge, other = net(), net()
    steps = [SGD(model.parameters(), lr=0.1) for model in (judge, other)]
    with audit() as report:
        for x, y in data():
            F.cross_entropy(judge(x), y).backward()
            steps[0].step()
            steps[0].zero_grad()
            F.cross_entropy(judge(other(x).repeat(1, 2)[:, :3]), y).backward()  # leaves gradients in judge
            steps[1].step()
            steps[1].zero_grad()
    assert report.rules == ["foreign-gradients"]
