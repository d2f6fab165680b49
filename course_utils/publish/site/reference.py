"""The pages on the pitfalls, on the auditor's rules, on the facts, and on the functions of the package."""

import inspect
from collections.abc import Iterator
from difflib import unified_diff
from html import escape
from importlib import import_module
from pathlib import Path

from course_utils.practice.display import png
from course_utils.publish.facts import Claim, Fact, read_claims, read_facts
from course_utils.publish.notebook import Notebook, claims
from gradaudit.compare.rules import RULES, Rule

SILHOUETTES = """Six common bugs, by the shape that they leave in the gradient ledger, drawn over their fixed twins:

![Six small ledgers. In each, the norm of .grad is higher or lower than in the fixed loop, or is read elsewhere.](\
silhouettes.png)"""
ROOMS = ("loops", "recording", "memory", "data", "models", "plots", "ranks", "practice")


def texts(notebooks: dict[str, Notebook]) -> Iterator[tuple[str, str]]:
    """The pages: the name of a file, and its Markdown."""
    from course_utils.zoo import ZOO  # only here: it builds models and data

    yield "pitfalls.md", _pitfalls()
    yield "facts.md", _facts(list(read_facts().values()), notebooks)
    yield "claims.md", _claims(read_claims())
    for rule in RULES.values():
        yield f"rules/{rule.name}.md", _rule(rule, [found for found in ZOO.values() if found.rule == rule.name])
    rules = [(rule.name, rule.symptom) for rule in RULES.values()]
    yield "rules/index.md", _listing("The auditor's rules", rules, SILHOUETTES)
    rooms = {room: import_module(f"course_utils.{room}") for room in ROOMS} | {"gradaudit": import_module("gradaudit")}
    for room, module in rooms.items():
        yield f"api/{room}.md", _room(module)
    yield (
        "api/index.md",
        _listing("The package", [(room, (rooms[room].__doc__ or "").split("\n")[0]) for room in rooms]),
    )


def draw_silhouettes(path: Path) -> None:
    """Draws the picture of the rules' first page: the loops of the sheet for the wall, and their fixed twins."""
    from course_utils import plots  # only here: they need matplotlib and torch
    from course_utils.publish.handouts.silhouettes import BUGS
    from course_utils.recording import record
    from course_utils.zoo import ZOO

    drawn = {}
    for bug in BUGS:
        traces = []
        for loop in (ZOO[bug.specimen].buggy, ZOO[bug.specimen].fixed):
            with record() as trace:
                loop()
            traces.append(trace)
        drawn[f"{bug.name}: {bug.rule}"] = (*traces, bug.micro_batches)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(plots.silhouettes(drawn)))


def _listing(title: str, entries: list[tuple[str, str]], above: str = "") -> str:
    rows = [f"| [{name}]({name}.md) | {what} |" for name, what in entries]
    tree = ["```{toctree}", ":hidden:", "", *(name for name, _ in entries), "```"]
    return "\n".join(
        [f"# {title}", "", *([above, ""] if above else []), "| | |", "| --- | --- |", *rows, "", *tree, ""]
    )


def _pitfalls() -> str:
    from course_utils.zoo.pitfalls import PITFALLS, ZOO  # only here: it builds models and data

    lines = [
        "# Pitfalls",
        "",
        "Each row was reported in public. The check is a number that tells the buggy loop from its fixed twin; both "
        "ran when this page was built. A factor is what a loss was multiplied by before `backward()`. The page of a "
        "rule shows the loops.",
        "",
        "| symptom | cause | check | fix | rule |",
        "| --- | --- | --- | --- | --- |",
    ]
    for pitfall in PITFALLS:
        specimen = ZOO[pitfall.specimen]
        rule = f"[{specimen.rule}](rules/{specimen.rule}.md) ([report]({specimen.url}))"
        lines.append(f"| {' | '.join([*pitfall.row(), rule])} |")
    return "\n".join([*lines, ""])


def _rule(rule: Rule, specimens: list) -> str:
    parts = [f"# {rule.name}"]
    for title, text in (("Symptom", rule.symptom), ("Cause", rule.cause), ("Fix", rule.fix)):
        parts += [f"## {title}", text] if text else []
    parts += ["## Reported in public"] if specimens else []
    for specimen in specimens:
        diff = "\n".join(
            unified_diff(_lines(specimen.buggy), _lines(specimen.fixed), "buggy", "fixed", n=20, lineterm="")
        )
        parts += [f"### {specimen.source}", f"{specimen.what} ([report]({specimen.url}))", f"~~~diff\n{diff}\n~~~"]
    return "\n\n".join(parts) + "\n"


def _lines(loop) -> list[str]:
    """The body of a loop, without its decorator and its name."""
    source = inspect.getsource(loop)
    return source[source.index("\ndef ") + 1 :].rstrip().splitlines()[1:]


def _claims(found: list[Claim]) -> str:
    """What common sources say, the myths and the pitfalls first, each with the fact that answers it."""
    first = {"myth": "Myths", "pitfall": "Pitfalls"}
    parts = ["# What people say", "Claims of common sources, in our words, each with the fact that answers it."]
    for kind, title in (*first.items(), ("", "Everything else")):
        chosen = [claim for claim in found if (claim.kind == kind if kind else claim.kind not in first)]
        rows = [f'| {c.claim} | {c.judged} | <a href="facts.html#{c.fact}">{c.fact}</a> |' for c in chosen]
        parts.append("\n".join([f"## {title}", "", "| claim | verdict | fact |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _facts(facts: list[Fact], notebooks: dict[str, Notebook]) -> str:
    shown = {claim for notebook in notebooks.values() for cell in notebook.cells for claim in claims(cell)}
    rows = []
    for fact in facts:
        place = f"notebooks/{fact.notebook}.html" + (f"#fact-{fact.id}" if fact.id in shown else "")
        cells = (escape(fact.statement), f"{escape(fact.belief)} <em>({fact.judged})</em>", fact.basis)
        link = f'<a href="{place}">{fact.notebook.split("_")[0]}</a>'
        rows.append(f'<tr id="{fact.id}">' + "".join(f"<td>{cell}</td>" for cell in (*cells, link)) + "</tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in ("what holds", "what people say", "basis", "shown in"))
    return "\n".join(
        [
            "# The facts",
            "",
            f"The course teaches {len(facts)} facts. An *executed* fact has a cell that shows it and an assertion that "
            "fails if the fact is false; the others are *recorded* elsewhere, *cited* or *derived*.",
            "",
            '<p class="search"><label>Search the facts <input type="search" id="search"></label> '
            '<span id="found" role="status"></span></p>',
            '<div class="wide"><table id="facts">',
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *rows,
            "</tbody></table></div>",
            "",
        ]
    )


def _room(module) -> str:
    """The public names of a room, each with its docstring."""
    names = getattr(module, "__all__", None) or [
        name
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", "") == module.__name__ and name[0] != "_"
    ]
    lines = [f"# {module.__name__}", "", "```{eval-rst}"]
    for name in names:
        thing = getattr(module, name)
        kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else ""
        if kind:
            lines += [f".. auto{kind}:: {module.__name__}.{name}", *(["   :members:"] if kind == "class" else []), ""]
    return "\n".join([*lines, "```", ""])
