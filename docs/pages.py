"""What the site takes from notebooks, facts, rules and the zoo when it is built.

`write` makes the folders `course` and `rules`, and `inserted` what the other pages, which are
written by hand, leave open. Pages show the notebooks as they were committed.
"""

import copy
import re
import shutil
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from html import escape
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from colab import address
from contents import paths
from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit.rules.rule import RULES, Rule
from notebooks import (
    COURSE,
    ROOT,
    Notebook,
    claims,
    in_words,
    is_folded,
    read_claims,
    read_facts,
    relinked,
    repository,
    tags,
)

HERE = Path(__file__).parent
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
FOLDED = {(True, False): "hide-input", (False, True): "hide-output", (True, True): "hide-cell"}
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
    deeper = [book for book in books.values() if not book.numbered]
    return {
        "course": _table("notebook, its question, minutes", map(_row, numbered)),
        "deeper": _table("notebook, its question, minutes", map(_row, deeper)),
        "paths": paths(books),
        "stepper": stepper(books["00_start"]),
        "rules": _table(
            "rule, what you notice", ((f"[{rule.name}](rules/{rule.name}.md)", rule.symptom) for rule in RULES.values())
        ),
        "pitfalls": _table("symptom, cause, check, fix, rule", (_pitfall(*row) for row in PITFALLS.items())),
        "facts": facts(books),
        "claims": common_claims(),
    }


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


def stepper(book: Notebook) -> str:
    """The frame in which a notebook steps through its first loop."""
    shown = (output.get("data", {}) for cell in book.code for output in cell.outputs)
    html = next(data["text/html"] for data in shown if data.get(COURSE, {}).get("kind") == "steps")
    return re.search("<iframe.*?</iframe>", html)[0]


def _downloads(name: str) -> str:
    """One line with the ways to run or to print a notebook."""
    found = [f"[Open in Colab]({address(name, repository())})"] if repository() else []
    for path, what in DOWNLOADS.items():
        if (ROOT / "build" / path.format(name)).is_file():
            found.append(f'<a href="../{path.format(name)}" download>{what}</a>')
    return " · ".join(found)


def _code(cell: NotebookNode, folded: bool = True) -> NotebookNode:
    made = copy.deepcopy(cell)
    parts = (is_folded(cell, "source"), is_folded(cell, "outputs"))
    made.metadata = {"tags": [FOLDED[parts]]} if folded and any(parts) else {}
    if cell.source.startswith(("# Predict", "# Answer", "# Recall")):
        made.metadata = {"tags": ["remove-input"]}  # a reader of the site needs what it shows
    made.outputs = [output for output in made.outputs if output.get("data", {}).get(COURSE, {}).get("kind") != "score"]
    for output in made.outputs:
        data = output.get("data", {})
        data.pop(COURSE, None)  # Sphinx warns of a type that it cannot show
        if "text/markdown" in data:
            data["text/markdown"] = relinked(data["text/markdown"], "[{}]({}.html)".format)
    return made


def _with_ids(made: NotebookNode) -> NotebookNode:
    """The same bytes for the same notebook: nbformat's own ids are random."""
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    return made


# Reference


def rule_page(rule: Rule) -> str:
    """A rule of the auditor, with the public bugs that it finds, each as a change that fixes it."""
    parts = [f"# {rule.name}"]
    for title in ("symptom", "cause", "fix", "known_problems"):
        parts += [f"## {title.capitalize().replace('_', ' ')}", getattr(rule, title)]
    specimens = [specimen for specimen in ZOO.values() if specimen.rule == rule.name]
    parts += ["## Reported in public"] if specimens else []
    for specimen in specimens:
        lines = (specimen.listing(fixed).splitlines()[1:] for fixed in (False, True))
        diff = "\n".join(unified_diff(*lines, "wrong", "correct", n=20, lineterm=""))
        parts += [f"### {specimen.source}", f"{specimen.what} ([report]({specimen.url}))", f"~~~diff\n{diff}\n~~~"]
    return "\n\n".join(parts) + "\n"


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
