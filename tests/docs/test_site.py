"""What the site takes from notebooks, facts, rules and the zoo."""

import re

import pytest

import pages
from course import FACTS, NOTEBOOKS
from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit.rules import RULES
from notebooks import COURSE, is_folded, tags


@pytest.fixture(scope="module")
def inserted():
    return pages.inserted(NOTEBOOKS)


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


def test_every_rule_has_a_page_with_its_public_bugs_each_with_a_wrong_and_a_correct_loop():
    for rule in RULES.values():
        text = pages.rule_page(rule)
        assert rule.symptom in text
        for specimen in (specimen for specimen in ZOO.values() if specimen.rule == rule.name):
            diff = text.partition(f"### {specimen.source}\n")[2].partition("\n~~~\n")[0]
            assert specimen.url in diff
            assert "--- wrong\n+++ correct\n" in diff


def test_the_symptom_table_has_every_pitfall_with_its_numbers_its_rule_and_its_report(inserted):
    for specimen, pitfall in PITFALLS.items():
        row = "| " + " | ".join(pitfall.row(specimen)) + " |"
        (line,) = [line for line in inserted["pitfalls"].splitlines() if line.startswith(row)]
        assert specimen.url in line
        assert f"rules/{specimen.rule}.md" in line or line.endswith(f"none ([report]({specimen.url})) |")


def test_every_fact_is_in_the_table_and_leads_to_its_cell_and_every_claim_to_its_fact(inserted):
    assert re.findall(r'<tr id="([^"]+)">', inserted["facts"]) == list(FACTS)
    for fact in FACTS.values():
        if fact.basis == "executed":
            assert f'href="course/{fact.notebook}.html#fact-{fact.id}"' in inserted["facts"]
    assert set(re.findall(r'"facts\.html#([^"]+)"', inserted["claims"])) <= FACTS.keys()
