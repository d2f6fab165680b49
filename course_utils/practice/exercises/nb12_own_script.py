"""The exercise of notebook 12 that audits a script of the learner's own."""

from course_utils.practice.bench import Exercise
from course_utils.practice.own_script import ScriptAudit, judge_own_script

OWN_SCRIPT = Exercise(
    "own_script",
    "12_project",
    watch=lambda audited, _: {"passed": judge_own_script(audited)},
    takes=ScriptAudit,
    praise="Done.",  # the prediction may have been another one
)
