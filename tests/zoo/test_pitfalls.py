"""The table of pitfalls: each row's number tells the buggy loop from its fixed twin."""

import warnings

import pytest

from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit import audit

MEASURED = {  # of the buggy loop and of its fixed twin
    "never-zeroed": (12, 1),
    "zeroed-before-the-step": (0, 1),
    "zeroed-in-every-micro-batch": (1, 4),
    "never-divided": (4, 1),
    "step-at-batch-zero": (1, 4),
    "tail-never-used": (2, 0),
    "tail-divided-by-n": (0.25, 1),
    "mean-of-means": (44 / 8, 1),
    "backward-in-validation": (3, 1),
    "clipped-in-every-micro-batch": (4, 1),
    "clipped-after-the-step": (0, 1),
    "clipped-once": (0, 1),
    "clipped-before-unscale": (1024, 1),
    "unscaled-in-every-micro-batch": (4, 1),
    "warmup-in-micro-batches": (4, 1),
    "averaged-in-every-micro-batch": (4, 1),
    "optimizer-before-wrapping": (0, 1),
    "checkpointed-after-frozen": (2, 0),
    "one-backward-per-window": (4, 1),
}


@pytest.mark.parametrize("specimen", PITFALLS, ids=lambda specimen: specimen.name)
def test_the_number_of_a_row_tells_the_buggy_loop_from_the_fixed_one(specimen):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PITFALLS[specimen].measured(specimen) == MEASURED[specimen.name]
    assert all(PITFALLS[specimen].row(specimen))


def test_each_row_has_a_loop_of_its_own():
    assert [specimen.name for specimen in PITFALLS] == list(MEASURED)


BESIDE = [specimen for specimen in PITFALLS if specimen.name not in ZOO]


@pytest.mark.parametrize("specimen", BESIDE, ids=lambda specimen: specimen.name)
@pytest.mark.filterwarnings("ignore:`parameters` is an empty", "ignore:None of the inputs have")
def test_the_auditor_finds_of_a_loop_beside_the_zoo_what_its_row_says(specimen):
    with audit() as report:
        specimen.buggy()
    found = {finding.rule: finding.level for finding in report.findings}
    assert found.get(specimen.rule) == specimen.level if specimen.rule else not found
    with audit() as report:
        specimen.fixed()
    assert report.findings == []
