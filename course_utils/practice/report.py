"""What an open experiment's report must hold before anyone judges it: four parts, each written, with a number."""

from collections.abc import Mapping

from course_utils.practice.judging import Mistake

PARTS = ("question", "prediction", "measurement", "conclusion")
_FEWEST_WORDS = 4


def judge_report(report: Mapping[str, str]) -> None:
    """Raises a `Mistake` unless each part of a report is written; what is in it only a reader can judge.

    Args:
        report: A text for each of `PARTS`.
    """
    if strangers := [part for part in report if part not in PARTS]:
        raise Mistake("wrong-type", f"a report has the parts {', '.join(PARTS)}, not {strangers[0]!r}.")
    written = {part: report.get(part) or "" for part in PARTS}
    for part, text in written.items():
        if text is ...:
            written[part] = ""
        elif not isinstance(text, str):
            raise Mistake("wrong-type", f"expected a text for the {part}, got {text!r}.")
    written = {part: " ".join(text.split()) for part, text in written.items()}
    empty = [part for part in PARTS if not written[part].strip(" .…?")]
    if len(empty) == len(PARTS):
        raise Mistake("not-attempted", f"nothing is written yet for {', '.join(PARTS)}.")
    if empty:
        raise Mistake("unfinished", f"nothing is written yet for {', '.join(empty)}.")
    for part, text in written.items():
        if len(text.split()) < _FEWEST_WORDS:
            raise Mistake("too-short", f'the {part} is "{text}": write a sentence that a reader understands.')
    if "?" not in written["question"]:
        raise Mistake("no-question", "the question does not end with a question mark.")
    if not any(letter.isdigit() for letter in written["measurement"]):
        raise Mistake("no-number", "there is no number in the measurement.")
    for number, part in enumerate(PARTS):
        for other in PARTS[number + 1 :]:
            if written[part].casefold() == written[other].casefold():
                raise Mistake("copied", f"the {other} says the same as the {part}, word for word.")
