"""Answers to "own_script": what the auditor said about a script, beside what was predicted."""

from answers import right, wrong
from course_utils.practice.own_script import ScriptAudit


def audited(prediction, *rules, status=None, level="error", script=__file__, lanes=("SGD",), **more):
    findings = [{"rule": rule, "level": level, "message": "m", "fix": "f", "where": "train.py:3"} for rule in rules]
    status = bool(rules and level == "error") if status is None else status
    return ScriptAudit(script, prediction, status=int(status), findings=findings, lanes=dict.fromkeys(lanes, 4), **more)


for compared in (
    audited("none"),
    audited("loss-scale", "loss-scale"),
    audited("loss-scale", "loss-scale", "leftover-gradients"),
    audited("none", "stale-gradients"),
    audited("stale-gradients"),
):
    right("own_script")(compared)

for incomparable, bug, says in (
    (ScriptAudit(None, None), "not-attempted", "no script is named"),
    (ScriptAudit(__file__, None), "no-prediction", "Nothing has run yet"),
    (ScriptAudit("no/such/train.py", "none"), "no-such-file", "no/such/train.py"),
    (ScriptAudit(__file__, "loss scale"), "unknown-rule", "did you mean 'loss-scale'?"),
    (audited("none", status=2, output="audit: cannot write x.json"), "cannot-run", "cannot write x.json"),
    (audited("none", status=3, output="  File x\nValueError: no data\n\nThe script ended"), "script-failed", "no data"),
    (audited("none", lanes=()), "no-training", ""),
    (audited("none", lanes=(), status=3, stopped=True), "stopped-too-early", ""),
    ("train.py", "wrong-type", "expected a ScriptAudit"),
):
    wrong("own_script", bug, says=says)(incomparable)
