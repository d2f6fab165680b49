"""The exercise of notebook 12 that audits a script of the learner's own."""

from course_utils.practice.exercises import exercise
from course_utils.practice.own_script import ScriptAudit, judge_own_script


@exercise(
    "own_script",
    notebook="12_project",
    takes=ScriptAudit,
    praise="Done.",  # the prediction may have been another one
    hints={
        "no-prediction": "Read your loop first: where does it zero, divide, clip and step? Then name a rule, or none.",
        "script-failed": "Does the script run without the auditor, from the same folder, with the same arguments?",
        "stopped-too-early": "Give it more time: audit_script(..., limit=900).",
    },
)
def _own_script(answer: ScriptAudit) -> str:
    return judge_own_script(answer)
