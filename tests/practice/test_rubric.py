"""An open experiment: its form is judged, its author ticks the criteria, and then it counts as passed."""

import IPython.display
import pytest

from course_utils.practice import ask, rubric
from course_utils.practice.display import COURSE
from course_utils.practice.score import Score

COMPLETE = {
    "question": "Does the width change the noise scale?",
    "prediction": "It grows with the width.",
    "measurement": "Three seeds, 88 and 116.",
    "conclusion": "It grew, by a third.",
}
CRITERIA = ["It is a <question>.", "It was repeated."]


@pytest.fixture
def score(monkeypatch):
    monkeypatch.setattr(ask, "_score", Score())
    monkeypatch.setattr(ask, "_line", None)
    return lambda: ask._score.text().partition("exercises ")[2].partition(";")[0]


@pytest.fixture
def form(monkeypatch):
    """The text and the boxes of the last form."""
    widgets = []
    monkeypatch.setattr(rubric, "show_widget", lambda widget, static: widgets.append(widget))
    return lambda: (widgets[-1].children[0].value, widgets[-1].children[1:])


def test_an_untouched_report_is_not_done_yet_and_its_boxes_cannot_be_ticked(form, score):
    verdict = rubric.rubric("own_experiment", dict.fromkeys(COMPLETE, ""), CRITERIA)
    said, boxes = form()
    assert verdict.bug == "not-attempted"
    assert "Not done yet. Nothing is written yet for question" in said
    assert all(box.disabled for box in boxes)
    assert "1 exercise" in ask._score.text()


def test_an_incomplete_report_says_what_is_missing_with_a_hint(form, score):
    rubric.rubric("own_experiment", COMPLETE | {"conclusion": ""}, CRITERIA)
    said, boxes = form()
    assert "Not complete (unfinished). Nothing is written yet for conclusion." in said
    assert "<summary>Hint</summary>" in said
    assert all(box.disabled for box in boxes)
    assert score() == "0 passed of 1 tried (1 set)"


def test_it_counts_as_passed_when_the_last_box_is_ticked(form, score):
    assert rubric.rubric("own_experiment", COMPLETE, CRITERIA).passed
    said, boxes = form()
    assert "Complete." in said
    assert score() == "0 passed of 1 tried (1 set)"
    boxes[0].value = True
    assert "1 of 2 criteria hold." in form()[0]
    assert score() == "0 passed of 1 tried (1 set)"
    boxes[1].value = True
    assert "Done" in form()[0]
    assert score() == "1 passed of 1 tried (1 set)"


def test_the_sample_of_the_notebook_does_not_count(form, score):
    rubric.rubric("own_experiment", COMPLETE, CRITERIA, scored=False)
    for box in form()[1]:
        box.value = True
    assert score() == ""


def test_without_a_kernel_the_criteria_are_there_to_be_ticked_on_paper(monkeypatch, score):
    bundles = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw, metadata: bundles.append(bundle))
    rubric.rubric("own_experiment", COMPLETE, CRITERIA)
    (bundle,) = bundles
    assert bundle["text/plain"].endswith("\n  [ ] It is a <question>.\n  [ ] It was repeated.")
    assert "&#9744; It is a &lt;question&gt;." in bundle["text/html"]
    assert bundle[COURSE]["criteria"] == CRITERIA
    assert bundle[COURSE]["kind"] == "verdict"


@pytest.mark.parametrize("criteria", [[], "one", ["same", "same"], [1, 2]])
def test_criteria_are_a_list_of_different_sentences(score, criteria):
    with pytest.raises(ValueError, match="expected a list of different sentences"):
        rubric.rubric("own_experiment", COMPLETE, criteria)
    assert score() == ""
