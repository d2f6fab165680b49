"""The exercise of notebook 06c that asks for an experiment: the form of its report."""

from course_utils.practice.exercises import exercise
from course_utils.practice.report import judge_report


@exercise(
    "own_experiment",
    notebook="06c_noise_scale",
    takes=dict,
    hints={
        "unfinished": "Write all four parts. The prediction comes before you run anything, and stays as it is.",
        "wrong-type": "Change only what stands between the quotation marks.",
    },
)
def _own_experiment(answer: dict) -> str:
    judge_report(answer)
    return "a question, a prediction, a measurement and a conclusion are there. Now judge them: tick what holds."
