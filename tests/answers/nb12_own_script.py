"""Answers to "own_script": what the auditor said about a script, beside what was predicted."""

from answers import right, wrong
from course_utils.exercises.nb12_project import ScriptAudit


def audited(prediction, *rules, **more):
    found = dict.fromkeys(rules, "error")
    return ScriptAudit(__file__, prediction, **{"status": int(bool(rules)), "found": found, "judged": True, **more})


for compared in (
    audited("none"),
    audited("loss-scale", "loss-scale"),
    audited("loss-scale", "loss-scale", "leftover-gradients"),
    audited("none", "stale-gradients"),
    audited("stale-gradients", "stale-gradients", status=3, stopped=True),
    audited("stale-gradients"),
):
    right("own_script")(compared)

for incomparable, bug, says in (
    (ScriptAudit(None, None), "not-attempted", "no script is named"),
    (ScriptAudit(__file__, None), "no-prediction", "Nothing has run yet"),
    (ScriptAudit("no/such/train.py", "none"), "no-such-file", "no/such/train.py"),
    (ScriptAudit(__file__, "loss scale"), "unknown-rule", "did you mean loss-scale?"),
    (audited("none", status=3, output="  File x\nValueError: no data\n\nThe script ended"), "script-failed", "no data"),
    (audited("none", judged=False, status=4), "not-judged", "exit status 4"),
    (audited("none", judged=False, status=3, stopped=True), "not-judged", ""),
    ("train.py", "wrong-type", "expected a ScriptAudit"),
):
    wrong("own_script", bug, says=says)(incomparable)
