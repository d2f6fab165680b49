"""Exercises of the kind "open experiment": the learner writes a short report, and ticks the criteria that it meets."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from course_utils.practice import ask
from course_utils.practice.display import ASK, RIGHT, WRONG, as_static, box, folded, show_widget
from course_utils.practice.exercises import Verdict, judge


def rubric(exercise: str, report: Mapping[str, str], criteria: Sequence[str], scored: bool = True) -> Verdict:
    """Shows whether a report on an experiment is complete, and the criteria by which its author judges it.

    Nobody can judge an open experiment but a reader. So the exercise is passed when the report is complete and its
    author has ticked every criterion.

    Args:
        exercise: The name of the exercise, under which it counts in the progress line.
        report: What the learner has written: `question`, `prediction`, `measurement` and `conclusion`.
        criteria: Sentences that are true of a good report.
        scored: Whether it counts for the progress line, as the notebook's own sample does not.

    Returns:
        The `Verdict` on the form alone; `passed` says that the report is complete.
    """
    sentences = [criterion for criterion in criteria if isinstance(criterion, str)]
    if isinstance(criteria, str) or not sentences or not len(criteria) == len(set(sentences)):
        raise ValueError(f"expected a list of different sentences, got {criteria!r}")
    verdict = judge(exercise, report)
    message = verdict.message[:1].upper() + verdict.message[1:]
    if verdict.passed:
        color, text = ASK, f"Complete. {message}"
    elif verdict.bug == "not-attempted":
        color, text = ASK, f"Not done yet. {message}"
    else:
        color, text = WRONG, f"Not complete ({verdict.bug}). {message}"
    if scored:
        ask._count(ask._score.judge, exercise, verdict.bug != "not-attempted", False)
    hint = "" if verdict.bug in ("", "not-attempted") else folded("Hint", verdict.hint)
    list_of = "".join(f"<div>&#9744; {escape(criterion)}</div>" for criterion in criteria)
    static = as_static(
        box(color, f"{escape(text)}{list_of}") + hint,
        "\n".join([text, *(f"  [ ] {criterion}" for criterion in criteria)]),
        {"kind": "verdict", "exercise": exercise, "passed": verdict.passed, "bug": verdict.bug, "message": message}
        | {"criteria": list(criteria)},
    )
    show_widget(_form(exercise, box(color, escape(text)) + hint, criteria, verdict.passed, scored), static)
    return verdict


def _form(exercise: str, html: str, criteria: Sequence[str], complete: bool, scored: bool) -> Any:
    """A box to tick for each criterion, once the report is complete; when all are ticked, the exercise is passed."""
    from ipywidgets import HTML, Checkbox, Layout, VBox

    said = HTML(html)
    boxes = [
        Checkbox(description=criterion, indent=False, disabled=not complete, layout=Layout(width="auto"))
        for criterion in criteria
    ]

    def ticked(_: Any) -> None:
        done = sum(each.value for each in boxes)
        if done < len(boxes):
            said.value = box(ASK, f"{done} of {len(boxes)} criteria hold.")
        else:
            said.value = box(RIGHT, "Done: your report meets every criterion.")
            if scored:
                ask._count(ask._score.judge, exercise, True, True)

    for each in boxes:
        each.observe(ticked, names="value")
    return VBox([said, *boxes])
