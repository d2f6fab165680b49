"""What each rule is about, in a terminal: symptom, cause, fix, wrong and correct lines, and public reports."""

from gradaudit.rules import RULES
from gradaudit.rules.rule import Rule
from gradaudit.text import lines_of, paint


def explain(name: str | None, width: int, colour: bool = False) -> str:
    """The explanation of a rule, or a list of all rules.

    Args:
        name: A rule's name; None for the list.
        width: Columns.
        colour: Whether to mark names by ANSI colours.

    Raises:
        KeyError: If there is no such rule.
    """
    return "\n".join(_all_rules(width, colour) if name is None else _explained(RULES[name], width, colour))


def _all_rules(width: int, colour: bool) -> list[str]:
    lines = []
    for rule in RULES.values():
        lines += [paint(rule.name, "name", colour), *lines_of(rule.symptom, width, "    ")]
    return [*lines, "", *lines_of("gradaudit --explain RULE shows a rule's cause, and wrong and correct lines.", width)]


def _explained(rule: Rule, width: int, colour: bool) -> list[str]:
    lines = [paint(rule.name, "name", colour), ""]
    texts = {"symptom": rule.symptom, "cause": rule.cause, "fix": rule.fix, "known problems": rule.known_problems}
    for title, text in texts.items():
        lines += lines_of(f"{f'{title}: ':9}{text}", width, "  ", " " * 11)
    for title, code, kind in (("wrong", rule.wrong, "error"), ("correct", rule.correct, "fix")):
        lines += ["", paint(f"  {title}:", kind, colour)]
        for line in code.splitlines():
            indent = " " * (4 + len(line) - len(line.lstrip()))
            lines += lines_of(line.lstrip(), width, indent, f"{indent}    ")
    lines += ["", "  reported in public:"]
    return [*lines, *(f"    https://github.com/{report}" for report in rule.reported)]
