"""What the site takes from notebooks, facts, rules and the zoo."""

import re

import pytest

import pages
from course import FACTS, NOTEBOOKS
from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit.rules import RULES
from notebooks import COURSE, is_folded, tags


@pytest.mark.parametrize("book", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_a_page_folds_what_jupyterlab_folds_and_has_no_solution(book):
    made = pages.page(book)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    shown = [cell for cell in book.code if "solution" not in tags(cell)]
    assert [cell.source for cell in code] == [cell.source for cell in shown]
    for cell, old in zip(code, shown, strict=True):
        folds = "".join(tags(cell))
        assert ("hide-output" in folds or "hide-cell" in folds) == is_folded(old, "outputs")
        assert any(tag in folds for tag in ("hide-input", "hide-cell", "remove-input")) == is_folded(old, "source")
        assert not any(COURSE in output.get("data", {}) for output in cell.outputs)
    text = "\n".join(cell.source for cell in made.cells)
    assert "# Solution" not in text
    for fact in FACTS.values():
        if fact.notebook == book.name and fact.basis == "executed":
            assert f'<span id="fact-{fact.id}"></span>' in text


def test_with_a_repository_a_page_opens_in_colab_and_can_be_downloaded(monkeypatch):
    monkeypatch.setattr(pages, "repository", lambda: "somebody/course")
    top = pages.page(NOTEBOOKS["02_zeroing"]).cells[0].source
    assert "(https://colab.research.google.com/github/somebody/course/blob/colab/02_zeroing.ipynb)" in top
    assert '<a href="../notebooks/02_zeroing.ipynb" download>' in top


def test_every_rule_has_a_page_with_what_the_auditor_prints_and_its_public_bugs_each_as_a_change():
    for rule in RULES.values():
        text = pages.rule_page(rule)
        assert rule.symptom in text
        assert re.search(rf"^[A-Z]+ {rule.name}  course_utils/zoo/", text, flags=re.M) or rule.name == "sync-cadence"
        for specimen in (specimen for specimen in ZOO.values() if specimen.rule == rule.name):
            diff = text.partition(f"### [{specimen.source}]({specimen.url})\n")[2].partition("\n~~~\n")[0]
            assert re.search("^[-+] ", diff, flags=re.M)


def test_the_symptom_table_has_every_pitfall_with_its_numbers_its_rule_and_its_report():
    inserted = pages.inserted(NOTEBOOKS)
    for specimen, pitfall in PITFALLS.items():
        row = "| " + " | ".join(pitfall.row(specimen)) + " |"
        (line,) = [line for line in inserted["pitfalls"].splitlines() if line.startswith(row)]
        assert specimen.url in line
        assert f"rules/{specimen.rule}.md" in line or line.endswith(f"none ([report]({specimen.url})) |")
