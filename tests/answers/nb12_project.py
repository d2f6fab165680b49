"""Answers to the exercises of 12: letters, shares, and what the auditor said beside what was predicted."""

import torch

from answers import edited, right, wrong
from course_utils.exercises.nb12_project import audit_script

right("five_bugs")("H, F, D, C, A")
for letters, bug, says in (
    ("", "not-attempted", ""),
    ("abc", "no-bug", "b: `enumerate`"),
    ("acdfhz", "no-bug", "z: no statement"),
    ("ac", "bugs-left", "3 of the five"),
):
    wrong("five_bugs", bug, says)(letters)


@right("find_shares")
def by_normal_equations(updates, of_each):
    return torch.linalg.solve(of_each @ of_each.T, of_each @ updates.T).T


right("find_shares")(lambda updates, of_each: updates @ torch.linalg.pinv(of_each))

SOLVED = "torch.linalg.lstsq(of_each.T, updates.T).solution.T"
for bug, instead in (
    ("wrong-shape", SOLVED.removesuffix(".T")),
    ("wrong-shape", "updates.tolist()"),
    ("not-attempted", "None"),
    ("not-the-shares", "updates @ of_each.T"),
    ("not-the-shares", "updates @ of_each.T / (of_each**2).sum(dim=1)"),
    ("raises", "torch.linalg.lstsq(of_each, updates).solution"),
):
    wrong("find_shares", bug)(edited("find_shares", (SOLVED, instead)))


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
