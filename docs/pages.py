"""What the site takes from notebooks, facts, rules and the zoo when it is built.

`write` makes the folders `course` and `rules`, and `inserted` what the other pages, which are
written by hand, leave open. Pages show the notebooks as they were committed.
"""

import copy
import re
import shutil
import warnings
from collections.abc import Iterable, Sequence
from contextlib import chdir
from difflib import unified_diff
from html import escape
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook, new_output

import cheatsheet
import silhouettes
from colab import address
from contents import paths, topics
from course_utils.ask.predictions import recorded
from course_utils.source import function
from course_utils.stepping.drawing import frames
from course_utils.stepping.player import player
from course_utils.stepping.recorder import record_steps
from course_utils.zoo import ZOO, Specimen
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit import audit
from gradaudit.formats import as_text
from gradaudit.rules.rule import LEVELS, RULES, Rule
from notebooks import (
    COURSE,
    ROOT,
    Notebook,
    claims,
    displays,
    in_words,
    is_folded,
    read_claims,
    read_facts,
    relinked,
    repository,
    tags,
    text_of,
)

HERE = Path(__file__).parent
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
FOLDED = {(True, False): "hide-input", (False, True): "hide-output", (True, True): "hide-cell"}
TREE = "```{{toctree}}\n:hidden:\n:caption: Deeper · {}\n\n{}\n```"
DOWNLOADS = {  # what a page offers for a notebook, if it is there when the site is built
    "handouts/learner/{}.pdf": "learner's handout (PDF)",
    "handouts/worksheet/{}.pdf": "worksheet (PDF)",
    "handouts/instructor/{}.pdf": "instructor's handout (PDF)",
    "colab/{}.ipynb": "one file for Colab",
}


def write(books: dict[str, Notebook]) -> None:
    """Writes the pages of the notebooks and of the rules."""
    course, rules = HERE / "course", HERE / "rules"
    for folder in (course, rules):
        shutil.rmtree(folder, ignore_errors=True)
    (course / "solutions").mkdir(parents=True)
    rules.mkdir()
    shutil.copy(ROOT / "notebooks" / "cheatsheet.pdf", course)
    for book in books.values():
        nbformat.write(page(book), course / f"{book.name}.ipynb")
        nbformat.write(solutions(book), course / "solutions" / f"{book.name}.ipynb")
    for rule in RULES.values():
        (rules / f"{rule.name}.md").write_text(rule_page(rule), encoding="utf-8")


def inserted(books: dict[str, Notebook]) -> dict[str, str]:
    """What stands on a written page instead of `<!-- course -->` and other comments like it."""
    numbered = [book for book in books.values() if book.numbered]
    return {
        "course": _table("notebook, its question, minutes", map(_row, numbered)),
        "deeper": "\n\n".join(
            f"### {about}\n\n{_table('notebook, its question, minutes', map(_row, some))}"
            for about, some in topics(books).items()
        ),
        "contents": "\n\n".join(
            TREE.format(about, "\n".join(f"course/{book.name}" for book in some))
            for about, some in topics(books).items()
        ),
        "paths": paths(books).splitlines()[0],
        "quiz": quiz(),
        "rules": _table(
            "rule, what you notice", ((f"[{rule.name}](rules/{rule.name}.md)", rule.symptom) for rule in RULES.values())
        ),
        "pitfalls": _table("symptom, cause, check, fix, rule", (_pitfall(*row) for row in PITFALLS.items())),
        "facts": facts(books),
        "claims": common_claims(),
    }


# The landing page


def quiz() -> str:
    """Six loops by their silhouettes: each runs moment by moment, and asks what is wrong with it."""
    bugs = cheatsheet.bugs()
    buttons = "".join(
        f'<button type="button" aria-controls="loop-{number}" aria-label="Loop {number}">{_drawn(bug)}</button>'
        for number, bug in enumerate(bugs, start=1)
    )
    loops = (_loop(f"loop-{number}", bug, [bug["name"] for bug in bugs]) for number, bug in enumerate(bugs, start=1))
    return "\n\n".join([f'<div class="silhouettes">{buttons}</div>', *loops])


def _loop(name: str, bug: dict, names: list[str]) -> str:
    specimen = ZOO[bug["specimen"]]
    source = re.sub(r"^ *yield .*\n", "", specimen.listing(), flags=re.M)  # the logging, which a plain loop has not
    steps = record_steps(function(source, specimen.loop.__globals__, name), *specimen.props())
    shown = [[*frame[:4], *frame[5:]] for frame in frames(*steps)]  # without the weights: the ledger tells
    options = "".join(f"<div>{option}</div>" for option in names)
    about = f'data-question="{name}" data-answer="{bug["name"]}"'
    return "\n\n".join(
        [
            f'<div class="loop" id="{name}">{player("A loop, moment by moment", shown)}',
            f'<div class="prediction" {about}><b>What is wrong with this loop?</b>{options}</div>',
            f'<details class="answer" {about}><summary>What is wrong, and what fixes it</summary>',
            f"{_drawn(bug)}",
            f"{specimen.what} ([report]({specimen.url}))",
            _fixed(specimen),
            f"The auditor calls it [{specimen.rule}](rules/{specimen.rule}.md).",
            "</details></div>",
        ]
    )


def _drawn(bug: dict) -> str:
    size = f"{silhouettes.WIDTH} {silhouettes.HEIGHT}"
    held = ", ".join(map(str, silhouettes.updates(bug)))
    drawn = silhouettes.outline(bug).replace("\n", "")
    return f'<svg class="silhouette" role="img" aria-label="updates of {held}" viewBox="0 0 {size}">{drawn}</svg>'


# The pages of a notebook


def page(book: Notebook) -> NotebookNode:
    """A notebook to read: folds stay, solutions are links, and loops step without a kernel."""
    made = new_notebook(metadata=METADATA)
    for cell in book.cells:
        made.cells += [new_markdown_cell(f'<span id="fact-{claim}"></span>') for claim in claims(cell)]
        if "solution" in tags(cell):
            link = f"*[Solution](solutions/{book.name}.ipynb)*, on a page of its own."
            made.cells.append(new_markdown_cell(link))
        elif cell.cell_type == "markdown":
            made.cells.append(new_markdown_cell(relinked(cell.source, "[{}]({}.ipynb)".format)))
        else:
            made.cells.append(_code(cell))
    title, rest = made.cells[0].source.split("\n", 1)
    number = f"{book.label} · " if book.numbered else ""
    made.cells[0].source = f"# {number}{title.removeprefix('# ')}\n\n{_downloads(book.name)}\n{rest}"
    return _with_ids(made)


def solutions(book: Notebook) -> NotebookNode:
    """The solutions of a notebook, each below the text of its exercise."""
    title = f"# Solutions: {book.title}\n\n[Back to the notebook](../{book.name}.ipynb)"
    made, asked = new_notebook(metadata=METADATA, cells=[new_markdown_cell(title)]), ""
    for cell in book.cells:
        if cell.cell_type == "markdown":
            asked = re.sub(r"^## .*\n", "", cell.source, flags=re.M).strip()
        elif "solution" in tags(cell):
            text = relinked(asked, "[{}](../{}.ipynb)".format)
            heading = f"## Exercise {len(made.cells) // 2 + 1}"
            made.cells += [new_markdown_cell(f"{heading}\n\n{text}"), _code(cell, folded=False)]
    return _with_ids(made)


def _downloads(name: str) -> str:
    """One line with the ways to run or to print a notebook."""
    found = []
    if repository():
        found.append(f"[Open in Colab]({address(name, repository())})")
        found.append(f'<a href="../notebooks/{name}.ipynb" download>Download</a>')
    for path, what in DOWNLOADS.items():
        if (ROOT / "build" / path.format(name)).is_file():
            found.append(f'<a href="../{path.format(name)}" download>{what}</a>')
    return " · ".join(found)


def _code(cell: NotebookNode, folded: bool = True) -> NotebookNode:
    made = copy.deepcopy(cell)
    parts = (is_folded(cell, "source"), is_folded(cell, "outputs"))
    made.metadata = {}
    if folded and any(parts):
        prompts = dict.fromkeys(("code_prompt_show", "code_prompt_hide"), _what_it_folds(cell))
        made.metadata = {"tags": [FOLDED[parts]], "mystnb": prompts}
    asks = {shown["kind"] for shown in displays(cell)} & {"prediction", "cards"}
    if parts[0] and (asks or cell.source.startswith("# Answer\n")):
        made.metadata = {"tags": ["remove-input"]}  # a reader of the site needs what it shows
    made.outputs = [output for output in made.outputs if output.get("data", {}).get(COURSE, {}).get("kind") != "score"]
    for output in made.outputs:
        data = output.get("data", {})
        about = data.pop(COURSE, {})  # Sphinx warns of a type that it cannot show
        if "text/markdown" in data:
            data["text/markdown"] = relinked(data["text/markdown"], "[{}]({}.html)".format)
        for kind in data.keys() & {"text/html", "text/markdown"}:
            data[kind] = _marked(data[kind], about)
    made.outputs = [_highlighted(output) for output in made.outputs]
    return made


def _what_it_folds(cell: NotebookNode) -> str:
    """What the bar of a fold says: the comment that the cell begins with, or of its output the first line."""
    if is_folded(cell, "source"):
        said = re.match(r"# ([^\n]+)", cell.source)
        return said[1] if said else "Code"
    revealed = any(shown["kind"] == "reveal" for shown in displays(cell))
    return "What was measured, and why" if revealed else text_of(cell.outputs[0]).partition("\n")[0]


def _marked(html: str, about: dict) -> str:
    """A prediction or its answer, marked for the script that lets readers choose."""
    if about.get("kind") not in ("prediction", "reveal"):
        return html
    found = {"question": about["question"]}
    if about["kind"] == "reveal":
        why = recorded().get(about["question"], {}).get("why", "")
        found |= {"answer": about["measured"], "why": " ".join(why.split())}
    data = " ".join(f'data-{name}="{escape(text)}"' for name, text in found.items())
    kind = "answer" if "answer" in found else "prediction"
    return re.sub(r"<(div|details) ", lambda tag: f'<{tag[1]} class="{kind}" {data} ', html, count=1)


def _highlighted(output: NotebookNode) -> NotebookNode:
    """An output as it is, or as code if it is a loop's listing."""
    if not output.get("text", "").startswith("def loop("):
        return output
    return new_output("display_data", data={"text/markdown": f"~~~python\n{output.text}~~~"})


def _with_ids(made: NotebookNode) -> NotebookNode:
    """The same bytes for the same notebook: nbformat's own ids are random."""
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    return made


# Reference


def rule_page(rule: Rule) -> str:
    """A rule of the auditor, with the public bugs that it finds, each as a change that fixes it."""
    specimens = [specimen for specimen in ZOO.values() if specimen.rule == rule.name]
    levels = " or ".join(sorted({specimen.level for specimen in specimens}, key=LEVELS.index)) or "error"
    parts = [f"# {rule.name}", f"Severity: **{levels}**", "## Symptom", rule.symptom]
    for title in ("cause", "fix", "known_problems"):
        parts += [f"## {title.capitalize().replace('_', ' ')}", getattr(rule, title)]
    if specimens:
        parts += ["## What the auditor prints", "Of the first loop below:", f"~~~text\n{_report(specimens[0])}\n~~~"]
        parts += ["## Reported in public"]
    for specimen in specimens:
        parts += [f"### [{specimen.source}]({specimen.url})", specimen.what, _fixed(specimen)]
    return "\n\n".join(parts) + "\n"


def _fixed(specimen: Specimen) -> str:
    """The change that fixes a loop, as a block of code."""
    lines = (specimen.listing(fixed).splitlines()[1:] for fixed in (False, True))
    changes = list(unified_diff(*lines, n=20, lineterm=""))[3:]  # without names of files and numbers of lines
    return "\n".join(["~~~diff", *changes, "~~~"])


def _report(specimen: Specimen) -> str:
    """What the auditor says of a buggy loop."""
    with chdir(ROOT), warnings.catch_warnings(action="ignore"):
        with audit() as report:
            specimen.buggy()
        report.leave_out(RULES.keys() - {specimen.rule})
        found = as_text(report, 88).split("\n\n")
    return "\n\n".join(part for part in found if f" {specimen.rule}" in part)


def _pitfall(specimen, pitfall) -> tuple[str, ...]:
    rule = f"[{specimen.rule}](rules/{specimen.rule}.md)" if specimen.rule else "none"
    return *pitfall.row(specimen), f"{rule} ([report]({specimen.url}))"


def facts(books: dict[str, Notebook]) -> str:
    """The table of facts, which the script of the page searches."""
    shown = {claim for book in books.values() for cell in book.cells for claim in claims(cell)}
    rows = []
    for fact in read_facts().values():
        page = f"course/{fact.notebook}.html" + f"#fact-{fact.id}" * (fact.id in shown)
        link = f'<a href="{page}">{books[fact.notebook].label}</a>'
        belief = f"{escape(fact.belief)} <em>({in_words(fact.verdict)})</em>"
        cells = "".join(f"<td>{cell}</td>" for cell in (escape(fact.statement), belief, fact.basis, link))
        rows.append(f'<tr id="{fact.id}">{cells}</tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in ("what holds", "what people say", "basis", "shown in"))
    table = [f'<table id="facts"><thead><tr>{head}</tr></thead><tbody>', *rows, "</tbody></table>"]
    return "\n".join(['<div class="wide">', *table, "</div>"])


def common_claims() -> str:
    """Common sources, the myths and the pitfalls first, each with the fact that answers it."""
    groups: dict[str, list] = {"About myths": [], "Pitfalls": [], "Everything else": []}
    titles = {"myth": "About myths", "pitfall": "Pitfalls"}
    for claim in read_claims():
        fact = f'<a href="facts.html#{claim["fact"]}">{claim["fact"]}</a>'
        row = claim["claim"], in_words(claim["verdict"]), fact
        groups[titles.get(claim["kind"], "Everything else")].append(row)
    return "\n\n".join(f"## {title}\n\n{_table('claim, verdict, fact', rows)}" for title, rows in groups.items())


def _row(book: Notebook) -> tuple[str, ...]:
    number = f"{book.label} · " if book.numbered else ""
    return f"[{number}{book.title}](course/{book.name}.ipynb)", book.question, str(book.minutes)


def _table(head: str, rows: Iterable[Sequence[str]]) -> str:
    names = head.split(", ")
    return "\n".join(f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *rows])
