"""The cheat sheet: one page with the window, the order inside it, what is exact, and the auditor's rules."""

from collections.abc import Iterable, Iterator

from course_utils.audit.rules import RULES
from course_utils.publish import PublishError
from course_utils.publish.handouts.editions import div, verbatim
from course_utils.publish.handouts.parts import Table, take_apart
from course_utils.publish.handouts.press import TEMPLATES
from course_utils.publish.notebook import Notebook

TITLE, EDITION, TEMPLATE = "Gradient accumulation and zeroing, on one page", "Cheat sheet", "cheatsheet"


def markdown(notebooks: dict[str, Notebook]) -> str:
    """The page, with the table of notebook 04 and the auditor's rules filled in."""
    page = (TEMPLATES / "cheatsheet.md").read_text(encoding="utf-8")
    page = page.replace("<!-- decisions -->", _table("decisions", "you have, loss / N, do this", _decisions(notebooks)))
    return page.replace("<!-- rules -->", _table("rules", "rule, symptom, fix", _rules()))


def _table(kind: str, header: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header.split(", "), ("---", "---", "---"), *rows]
    return div(kind, "\n".join(f"| {' | '.join(line)} |" for line in lines))


def _decisions(notebooks: dict[str, Notebook]) -> Iterator[tuple[str, str, str]]:
    """The rows of notebook 04's table: its case, whether the plain division is exact, and what to do."""
    tables = take_apart(notebooks["04_exactness"]).of(Table) if "04_exactness" in notebooks else []
    if not tables:
        raise PublishError("the cheat sheet needs the table of what is exact, which 04_exactness displays")
    for case, divided, advice, *_ in tables[0].rows[1:]:
        yield verbatim(case), verbatim(divided.split(",")[0]), verbatim(advice)


def _rules() -> Iterator[tuple[str, str, str]]:
    for rule in RULES.values():
        yield f"`{rule.name}`", verbatim(rule.symptom.rstrip(".")), verbatim(rule.fix.rstrip("."))
