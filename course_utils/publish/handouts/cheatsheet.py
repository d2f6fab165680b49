"""The sheet for the wall: the ledger, the loop, six bugs and what is exact; on its back the pitfalls and the cases."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator

import torch

from course_utils.publish import PublishError
from course_utils.publish.colab import hosted
from course_utils.publish.handouts.editions import div, verbatim
from course_utils.publish.handouts.highlight import Run, highlighted
from course_utils.publish.handouts.parts import Table, take_apart
from course_utils.publish.handouts.press import TEMPLATES
from course_utils.publish.handouts.silhouettes import BUGS, ledgers, silhouettes
from course_utils.publish.notebook import Notebook, folder
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit.compare import RULES

TITLE, EDITION, TEMPLATE = "Gradient accumulation and zeroing in PyTorch", "Sheet for the wall", "cheatsheet"

# How far a window's gradient is from the large batch's, and that one from its own in float64: see `train_epoch`.
EXACT = {"float64": ("3e-16", ""), "float32": ("2e-7", "2e-7"), "bfloat16 autocast": ("3e-3", "4e-3")}
WRONG = ("0.60", "0.77")  # what README's table says of plain means over unequal micro-batches


def markdown(notebooks: dict[str, Notebook]) -> str:
    """Both pages. The loops that the front draws run here."""
    page = _template().replace(f"```python\n{loop()}```", _typst("front", front()))
    page = page.replace("<!-- decisions -->", _table("decisions", "you have, loss / N, do this", _decisions(notebooks)))
    page = page.replace("<!-- pitfalls -->", _table("pitfalls", "symptom, cause, check, fix", _pitfalls()))
    return page.replace("<!-- rules -->", ", ".join(f"`{name}`" for name in RULES))


def loop() -> str:
    """The loop of the sheet. A comment `# name: text` at the end of a line is the line's label."""
    return re.search(r"^```python\n(.*?)^```$", _template(), flags=re.M | re.S)[1]


def front() -> dict:
    """What the first page shows."""
    drawn = silhouettes()
    bugs = [
        {"rule": bug.rule, "name": bug.name, "micro_batches": bug.micro_batches, "fix": RULES[bug.rule].fix,
         "buggy": drawn[bug.rule][0], "fixed": drawn[bug.rule][1]}
        for bug in BUGS
    ]  # fmt: skip
    scale = {"exact": EXACT, "wrong": WRONG}
    return {"ledgers": ledgers(), "loop": list(labelled(loop())), "bugs": bugs, **scale, **_colophon()}


def _template() -> str:
    return (TEMPLATES / "cheatsheet.md").read_text(encoding="utf-8")


def labelled(source: str) -> Iterator[tuple[str, list[Run], str, str]]:
    """Each line of the loop with its words in bold, and with the name and the text of its label."""
    for line in source.splitlines():
        code, _, label = line.partition("  # ")
        name, _, text = label.partition(": ")
        yield code, *highlighted(code), name, text


def _colophon() -> dict[str, str]:
    """The version, and the address where there is one."""
    pyproject = folder().parent / "pyproject.toml"
    repository = hosted(pyproject)
    version = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["version"]
    torch_version = torch.__version__.partition("+")[0]
    address = f"github.com/{repository}" if repository else ""
    return {"version": version, "torch": torch_version, "address": address}


def _typst(function: str, data: dict) -> str:
    """A call of a function of the template."""
    text = json.dumps(json.dumps(data, ensure_ascii=False), ensure_ascii=False)
    return f"```{{=typst}}\n#{function}(json(bytes({text})))\n```"


def _table(kind: str, header: str, rows: Iterable[tuple[str, ...]]) -> str:
    names = header.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return div(kind, "\n".join(f"| {' | '.join(line)} |" for line in lines))


def _decisions(notebooks: dict[str, Notebook]) -> Iterator[tuple[str, str, str]]:
    """The rows of notebook 07's table: its case, whether the plain division is exact, and what to do."""
    tables = take_apart(notebooks["07_exactness"]).of(Table) if "07_exactness" in notebooks else []
    if not tables:
        raise PublishError("the cheat sheet needs the table of what is exact, which 07_exactness displays")
    for case, divided, advice, *_ in tables[0].rows[1:]:
        yield verbatim(case), verbatim(_alone(divided.split(",")[0])) or "–", verbatim(_alone(advice))


def _alone(text: str) -> str:
    """A text without the clauses that send the reader to a notebook.

    >>> _alone("divide by what it holds; 06 names the other choice"), _alone("see 10")
    ('divide by what it holds', '')
    """
    return "; ".join(clause for clause in text.split("; ") if not re.search(r"\b[01]\d\b", clause))


def _pitfalls() -> Iterator[tuple[str, ...]]:
    for pitfall in PITFALLS:
        yield tuple(_coded(text.rstrip(".")) for text in pitfall.row())


def _coded(text: str) -> str:
    """A text in which nothing but the code between backquotes is markup."""
    return "`".join(piece if place % 2 else verbatim(piece) for place, piece in enumerate(text.split("`")))
