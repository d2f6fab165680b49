"""What each rule is about, in a terminal: symptom, cause, fix, wrong and correct lines, and public reports.

It is read from the rules' files, which are not imported: that would import torch, and take seconds.
"""

import ast
import re
from pathlib import Path

from gradaudit.text import lines_of, paint, texts_of


def docstrings() -> dict[str, str]:
    """Each rule's name and its docstring, in the order of a report."""
    folder = Path(__file__).parent / "rules"
    order = re.search(r'_ORDER\w* = """(.*?)"""', (folder / "__init__.py").read_text("utf-8"), re.S)[1]
    files = ((folder / f"{name}.py").read_text("utf-8") for name in order.split())
    functions = (node for file in files for node in ast.parse(file).body if getattr(node, "decorator_list", ()))
    return {node.decorator_list[0].args[0].value: ast.get_docstring(node) for node in functions}


def explain(name: str | None, width: int, colour: bool = False) -> str:
    """The explanation of a rule, or a list of all rules.

    Args:
        name: A rule's name; None for the list.
        width: Columns.
        colour: Whether to mark names by ANSI colours.

    Raises:
        KeyError: If there is no such rule.
    """
    rules = docstrings()
    return "\n".join(_all_rules(rules, width, colour) if name is None else _explained(name, rules[name], width, colour))


def _all_rules(rules: dict[str, str], width: int, colour: bool) -> list[str]:
    lines = []
    for name, docstring in rules.items():
        lines += [paint(name, "name", colour), *lines_of(texts_of(docstring)["Symptom"], width, "    ")]
    return [*lines, "", *lines_of("gradaudit --explain RULE shows a rule's cause, and wrong and correct lines.", width)]


def _explained(name: str, docstring: str, width: int, colour: bool) -> list[str]:
    lines, texts = [paint(name, "name", colour), ""], texts_of(docstring)
    for title in ("Symptom", "Cause", "Fix", "Known problems"):
        lines += lines_of(f"{f'{title.lower()}: ':9}{texts[title]}", width, "  ", " " * 11)
    for title, kind in (("Wrong", "error"), ("Correct", "fix")):
        lines += ["", paint(f"  {title.lower()}:", kind, colour)]
        for line in texts[title].splitlines():
            indent = " " * (4 + len(line) - len(line.lstrip()))
            lines += lines_of(line.lstrip(), width, indent, f"{indent}    ")
    lines += ["", "  reported in public:"]
    return [*lines, *(f"    https://github.com/{report}" for report in texts["Reported"].split(", "))]
