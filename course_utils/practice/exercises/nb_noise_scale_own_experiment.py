"""The exercise of *noise scale* that asks for an experiment: the form of its report, and what makes a good one."""

from course_utils.practice.exercises import exercise
from course_utils.practice.report import judge_report

CRITERIA = (
    "One number, or a few, can answer the question.",
    "The prediction was written before the measurement, and gives a reason.",
    "Only one thing differs between the runs that I compare.",
    "The measurement says how often it was repeated, and how far the results spread.",
    "The conclusion says for which model, data and moment of training it holds, and claims no more.",
    "The conclusion says whether the prediction was right, and what I would have to measure to know why.",
)


@exercise(
    "own_experiment",
    notebook="noise_scale",
    takes=dict,
    hints={
        "unfinished": "Write all four parts. The prediction comes before you run anything, and stays as it is.",
        "wrong-type": "Change only what stands between the quotation marks.",
    },
)
def _own_experiment(answer: dict) -> str:
    judge_report(answer)
    return "a question, a prediction, a measurement and a conclusion are there. Now judge them: mark what holds."
