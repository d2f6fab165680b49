"""Answers to "own_script": what the auditor said about a script, beside what was predicted."""

from answers import right, wrong
from course_utils.exercises.nb12_project import audit_script


def audited(prediction, *rules, status=0, stopped=False, judged=True):
    findings = [{"rule": rule, "level": "error"} for rule in rules]
    output = "  File x\nValueError: no data\n"
    return prediction, (status, output, stopped), {"findings": findings, "judged": judged}


right("own_script")(audited("none"))
right("own_script")(audited("loss-scale", "loss-scale", "leftover-gradients"))
right("own_script")(audited("none", "stale-gradients"))
right("own_script")(audited("stale-gradients", status=3, stopped=True))

for incomparable, bug, says in (
    (audit_script(None, None), "not-attempted", "name a script"),
    (audit_script(__file__, "loss scale"), "not-attempted", "a rule that"),
    (audited("none", status=3), "not-judged", "status 3: ValueError: no data"),
    (audited("none", status=4, judged=False), "not-judged", "status 4"),
    (audited("none", status=3, stopped=True, judged=False), "not-judged", ""),
    ("train.py", "wrong-type", "expected a tuple"),
):
    wrong("own_script", bug, says=says)(incomparable)
