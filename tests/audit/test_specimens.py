"""The auditor finds every wrong loop of the zoo under its rule, and no error in the mended ones."""

import inspect
from functools import cache

import pytest

from course_utils import zoo
from course_utils.audit import audit
from course_utils.audit.rules import ADVICE, ERROR, UNDECIDED
from course_utils.zoo import ZOO

pytestmark = [pytest.mark.usefixtures("quick_scans"), pytest.mark.filterwarnings("ignore:Detected call")]
LEVELS = {  # of what is no bug for certain; all else is an error
    "one-backward-per-window": ADVICE,  # the gradient is right
    "running-loss-with-its-graphs": ADVICE,  # so it is here
    "batchnorm-in-windows": ADVICE,
    "added-up-in-bfloat16": ADVICE,
    "masked-mean-per-micro-batch": UNDECIDED,  # the mask is not seen from outside
}


@cache
def findings(name):
    with audit() as report:
        ZOO[name].wrong()
    return report.findings


@pytest.mark.parametrize("name", ZOO)
def test_a_wrong_loop_is_found_under_its_rule_at_a_line_of_its_own(name):
    specimen = ZOO[name]
    found = [f for f in findings(name) if f.rule == specimen.rule]
    assert LEVELS.get(name, ERROR) in {f.level for f in found}
    lines, first = inspect.getsourcelines(specimen.wrong)
    for finding in found:
        file, line = finding.where.rsplit(":", 1)
        assert file == zoo.__file__
        assert first <= int(line) < first + len(lines)
        assert finding.evidence
        assert finding.fix


@pytest.mark.parametrize("name", ZOO)
def test_a_mended_loop_has_no_error(name):
    with audit() as report:
        ZOO[name].mended()
    assert [f for f in report.findings if f.level == ERROR or f.rule == ZOO[name].rule] == []
    assert report.history.windows


EVIDENCE = {
    ("never-zeroed", "stale-gradients"): {"update": 2, "updates_affected": 11},
    ("zeroed-in-every-micro-batch", "discarded-gradients"): {"backward_calls": 16, "discarded": 12, "first": 1},
    ("zeroed-before-the-step", "empty-step"): {"steps": 12, "empty": list(range(1, 13))},
    ("critic-with-the-generators-gradients", "foreign-gradients"): {"foreign": 1, "own": 1},
    ("optimizer-before-wrapping", "orphan-parameters"): {"parameters": 4, "without_gradient": 4},
    ("parameter-replaced", "orphan-parameters"): {"without_gradient": 1, "unowned_with_gradient": 1},
    ("step-at-batch-zero", "irregular-window"): {"update": 1, "sizes": [1, 4, 4, 4]},
    ("tail-never-used", "leftover-gradients"): {"backward_calls": 2},
    ("never-divided", "loss-scale"): {"window": 4, "factor": 4.0, "coefficients": [1.0] * 4},
    ("divided-twice", "loss-scale"): {"window": 4, "factor": 0.25, "coefficients": [1 / 16] * 4},
    ("tail-divided-by-n", "loss-scale"): {"window": 4, "short_window": 1, "factor": 0.25},
    ("mean-of-means", "token-weights"): {"counts": [8, 44, 8, 44]},
    ("clipped-in-every-micro-batch", "clip-timing"): {"after_backward_calls": 1, "window": 4},
    ("clipped-before-unscale", "clip-timing"): {"scale": 1024.0},
    ("unscaled-in-every-micro-batch", "scaler-timing"): {"window": 4, "unscaled_after": [1, 2, 3], "scale": 1024.0},
    ("scaler-made-in-every-epoch", "scaler-timing"): {"scalers": 3},
    ("warmup-in-micro-batches", "scheduler-cadence"): {"scheduler_steps": 24, "updates": 6, "in_first_window": 3},
    ("one-backward-per-window", "held-graphs"): {"graphs": 4, "calls": 4},
    ("running-loss-with-its-graphs", "held-graphs"): {"graphs_alive": 7},
    ("batchnorm-in-windows", "batchnorm"): {"window": 4, "moves_per_update": 4},
    ("added-up-in-bfloat16", "low-precision-accumulation"): {"dtype": "bfloat16", "window": 32},
}


@pytest.mark.parametrize(("name", "rule"), EVIDENCE)
def test_the_evidence_is_in_numbers(name, rule):
    evidence = next(f.evidence for f in findings(name) if f.rule == rule)
    expected = EVIDENCE[name, rule]
    for key, value in expected.items():
        assert evidence[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), key


def test_the_weights_of_tokens_are_those_of_the_batches():
    weights = next(f.evidence["weights"] for f in findings("mean-of-means") if f.rule == "token-weights")
    assert weights == pytest.approx([26 / 8, 26 / 44, 26 / 8, 26 / 44])
