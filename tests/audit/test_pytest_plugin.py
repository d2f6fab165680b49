"""The fixture `audited`, in runs of pytest inside this one."""

import sys
import warnings
from importlib import import_module

import pytest
import torch
from torch.optim import Optimizer

import gradaudit.auditing  # noqa: F401, or an inner run would import it, and pytester forget it

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["gradaudit.pytest_plugin"]\n'
TRAINING = """
import unittest
import pytest
import torch
from torch import nn
from torch.nn import functional as F


def train(n=4, divide=True, count=8):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(count):
        loss = F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,)))
        (loss / n if divide else loss).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture(scope="module", autouse=True)
def _dynamo():
    """Imported early: pytester forgets the inner run's imports, which torch can't bear."""
    import_module("torch._dynamo")


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs a file of tests, and says how many passed, failed, and so on."""
    # As in a run of its own: pytest warns about a plugin that was imported before, here by the
    # tests of the package.
    monkeypatch.delitem(sys.modules, "gradaudit.pytest_plugin", raising=False)

    def run_tests(code, *options):
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(TRAINING + code)
        result = pytester.runpytest_inprocess("-p", "no:nbval", "-p", "no:xdist", *options)
        return result.parseoutcomes(), str(result.stdout)

    before = vars(torch.autograd)["backward"], vars(Optimizer)["zero_grad"]
    yield run_tests
    assert (vars(torch.autograd)["backward"], vars(Optimizer)["zero_grad"]) == before


def test_a_correct_loop_passes_and_one_that_cannot_be_judged_or_breaks_its_window_fails(run):
    outcomes, output = run("""
def test_training(audited): train()

def test_nothing(audited): nn.Linear(3, 2)(torch.ones(1, 3))

@pytest.mark.parametrize("n", [4, 2])
def test_declared(audited, n):
    audited.declare_window(n)
    train()

@pytest.mark.usefixtures("audited")
class TestTraining(unittest.TestCase):
    def test_training(self):
        train(divide=False)
""")
    assert outcomes == {"passed": 2, "failed": 3}
    assert "Could not judge: no backward call and no optimizer step was seen." in output
    assert "irregular-window" in output
    assert "fix: divide each mean" in output
    assert "Traceback" not in output  # the report alone
    assert "pytest_plugin.py" not in output


def test_an_allowed_rule_does_not_fail_others_do_and_an_unknown_one_is_an_error_that_names_the_nearest(run):
    outcomes, output = run("""
pytestmark = pytest.mark.allow_findings("leftover-gradients")

def test_the_tail(audited): train(count=6)

def test_another_bug(audited): train(count=6, divide=False)

@pytest.mark.allow_findings("loss-scale")
def test_both(audited): train(count=6, divide=False)

@pytest.mark.allow_findings("loss-scal")
def test_unknown(audited): train()
""", "--strict-markers")  # fmt: skip
    assert outcomes == {"passed": 2, "failed": 1, "errors": 1}
    assert "::test_another_bug" in output
    assert "there is no rule loss-scal; did you mean loss-scale?" in output


def test_a_test_that_fails_by_itself_shows_its_own_error_and_the_audit_ends_wherever_it_stops(run):
    outcomes, output = run("""
def test_training(audited):
    train(divide=False)
    assert 1 == 2, 'my own'

@pytest.fixture
def broken(audited):
    raise ValueError

def test_not_reached(audited, broken): train()

def test_skipped(audited): pytest.skip("not today")

def test_without(): train(divide=False)
""")
    assert outcomes == {"failed": 1, "errors": 1, "skipped": 1, "passed": 1}
    assert "my own" in output
    assert "Captured audit call" in output
    assert "ERROR loss-scale" in output


def test_an_auditor_that_fails_is_a_warning_and_no_failed_test(run, monkeypatch):
    monkeypatch.setattr("gradaudit.probes.auditor.caller_location", None)
    warnings.resetwarnings()  # as in a run of its own
    outcomes, output = run("def test_training(audited): train(divide=False)")
    assert outcomes == {"passed": 1, "warnings": 1}
    assert "ObserverFailure: The auditor has failed (TypeError" in output
