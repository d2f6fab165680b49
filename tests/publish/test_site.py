"""The pages of the site before Sphinx renders them: what is folded, apart, linked and left out."""

import importlib.util
import re

import pytest
from course import NOTEBOOKS

from course_utils import plots
from course_utils.publish import PublishError, site
from course_utils.publish.facts import read_facts
from course_utils.publish.notebook import as_course, is_folded, tags
from course_utils.publish.site import reference
from course_utils.publish.site.notebooks import page, solutions
from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from gradaudit.compare import RULES


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder that Sphinx would read. One handout has been printed."""
    path, printed = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("printed")
    (printed / "learner").mkdir()
    (printed / "learner" / "02_zeroing.pdf").write_bytes(b"%PDF")
    assert site.write_source(path, printed) == len([*path.rglob("*.md"), *path.glob("[ns]*/*.ipynb")])
    return path


@pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_a_page_folds_what_jupyterlab_folds_and_has_no_solution(notebook):
    made = page(notebook)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    shown = [cell for cell in notebook.code if not {"solution", "instructor"} & set(tags(cell))]
    assert [cell.source for cell in code] == [cell.source for cell in shown]
    for cell, old in zip(code, shown, strict=True):
        folds = "".join(tags(cell))
        assert ("hide-output" in folds or "hide-cell" in folds) == is_folded(old, "outputs")
        assert ("hide-input" in folds or "hide-cell" in folds) == is_folded(old, "source")
        assert [as_course(output) for output in cell.outputs if as_course(output)] == []
    text = "\n".join(cell.source for cell in made.cells)
    assert "# Solution" not in text
    assert "For the instructor" not in text
    for fact in (fact for fact in read_facts().values() if fact.notebook == notebook.name and fact.basis == "executed"):
        assert f'<span id="fact-{fact.id}"></span>' in text


@pytest.mark.parametrize("notebook", [NOTEBOOKS["02_zeroing"]], ids=["02_zeroing"])
def test_the_solutions_are_on_a_page_of_their_own_below_their_exercises(notebook):
    wanted = [cell.source for cell in notebook.code if "solution" in tags(cell)]
    made = solutions(notebook)
    assert [cell.source for cell in made.cells if cell.cell_type == "code"] == wanted if made else wanted == []


def test_every_rule_has_a_page_with_its_public_bugs(source):
    for rule in RULES.values():
        text = (source / "rules" / f"{rule.name}.md").read_text(encoding="utf-8")
        assert rule.symptom in text
        for specimen in ZOO.values():
            assert (specimen.url in text) == any(s.url == specimen.url for s in ZOO.values() if s.rule == rule.name)


def test_every_pitfall_is_on_the_site_with_its_numbers_its_rule_and_its_report(source):
    text = (source / "pitfalls.md").read_text(encoding="utf-8")
    for pitfall in PITFALLS:
        (line,) = [line for line in text.splitlines() if line.startswith("| " + " | ".join(pitfall.row()) + " |")]
        assert ZOO[pitfall.specimen].url in line
        assert (source / re.search(r"\((rules/.+?)\)", line)[1]).is_file()


def test_the_rules_begin_with_the_silhouettes_of_common_bugs_under_the_rules_names(source, monkeypatch):
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (source / "rules" / "index.md").read_text(encoding="utf-8"))
    assert (source / "rules" / picture).read_bytes().startswith(b"\x89PNG")
    drawn = []
    monkeypatch.setattr(plots, "silhouettes", lambda loops: drawn.append(loops) or plots.bars({"a": 1}, "b"))
    reference.draw_silhouettes(source / "rules" / picture)
    rules = [name.rpartition(": ")[2] for name in drawn[0]]
    assert len(rules) == 6 == len({*rules} & {*RULES})
    for buggy, fixed, many in drawn[0].values():
        norms = [[event.norm for event in trace.on() if event.kind == "backward"][:many] for trace in (buggy, fixed)]
        assert norms[0] != norms[1] or buggy.windows() != fixed.windows(), "the picture shows a difference"


def test_every_fact_is_in_the_table_and_leads_to_its_cell(source):
    text = (source / "facts.md").read_text(encoding="utf-8")
    facts = read_facts()
    assert re.findall(r'<tr id="([^"]+)">', text) == list(facts)
    for fact in facts.values():
        if fact.basis == "executed":
            assert f'href="notebooks/{fact.notebook}.html#fact-{fact.id}"' in text


def test_a_fact_of_hostile_text_is_escaped(monkeypatch):
    hostile = next(iter(read_facts().values()))
    object.__setattr__(hostile, "statement", "<script>alert(1)</script> & more")
    monkeypatch.setattr(reference, "read_facts", lambda: {hostile.id: hostile})
    text = dict(reference.texts(NOTEBOOKS))["facts.md"]
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in text


def test_each_page_offers_its_colab_edition_and_what_was_printed(source):
    text = (source / "notebooks" / "02_zeroing.ipynb").read_text(encoding="utf-8")
    for link in ("colab/02_zeroing.ipynb", "print/learner/02_zeroing.pdf"):
        assert f"../{link}" in text
        assert (source / "extra" / link).is_file()
    assert "print/learner" not in (source / "notebooks" / "04_accumulation.ipynb").read_text(encoding="utf-8")


def test_without_its_tools_or_the_handouts_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("course_utils.publish.site.rendering.find_spec", lambda name: None)
    with pytest.raises(PublishError, match=r'myst_nb.*pip install -e "\.\[site\]"'):
        site.build(tmp_path / "out")
    monkeypatch.setattr("course_utils.publish.site.rendering.find_spec", importlib.util.find_spec)
    monkeypatch.setattr(site, "require_tools", lambda: None)
    with pytest.raises(PublishError, match="no handouts in"):
        site.build(tmp_path / "out", printed=tmp_path)
    assert not (tmp_path / "out").exists()
