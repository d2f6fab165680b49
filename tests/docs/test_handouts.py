"""The handouts: what an edition shows and keeps back, plans to the minute, and whole PDFs."""

import base64
import re
import sys
from functools import cache
from itertools import pairwise, takewhile

import nbformat
import pytest
from nbformat import v4

import plans
from course import FACTS
from course import NOTEBOOKS as BOOKS
from editions import Handout, verbatim
from notebooks import COURSE, Notebook, claims, is_folded, tags, text_of

each_notebook = pytest.mark.parametrize("name", BOOKS)
some_notebooks = pytest.mark.parametrize("name", ["02_zeroing", "04_accumulation"])


@cache
def read_by(reader, name):
    return Handout(BOOKS[name], answers=reader == "instructor", most_room=6 if reader == "worksheet" else 22)


def learner(name):
    return read_by("learner", name).markdown()


def instructor(name):
    return read_by("instructor", name).markdown()


def show(**content):
    return v4.new_output("display_data", data={"text/plain": "for people", COURSE: content})


def book(path, *cells):
    title = v4.new_markdown_cell("# A title\n\n**10 minutes**\n\n*A question?*")
    nbformat.write(v4.new_notebook(cells=[title, *cells]), path)
    return Notebook(path)


# What each edition shows


@each_notebook
def test_the_learner_gets_no_solution_and_the_instructor_every_one(name):
    solutions = [cell for cell in BOOKS[name].code if "solution" in tags(cell)]
    given = [cell.source for cell in BOOKS[name].cells if cell not in solutions]
    before = takewhile(lambda cell: "solution" not in tags(cell), BOOKS[name].code)  # a loop that is to be extended
    given += [text_of(output) for cell in before if not is_folded(cell, "outputs") for output in cell.outputs]
    elsewhere = {line.strip() for source in given for line in source.splitlines()}
    shown, full = {line.strip() for line in learner(name).splitlines()}, instructor(name)
    for cell in solutions:
        own = {line.strip() for line in cell.source.splitlines()} - elsewhere
        assert own, "a solution that says nothing of its own cannot be told from its stub"
        assert not own & shown
        assert cell.source in full
    assert learner(name).count("::::: exercise") == sum("assert check(" in cell.source for cell in solutions)


@each_notebook
def test_the_learner_gets_no_answers_and_the_instructor_all(name):
    text, full = learner(name), instructor(name)
    for question, answer in BOOKS[name].cards:
        assert verbatim(question) in text
        assert verbatim(answer) in full
        assert verbatim(answer) not in text or answer in BOOKS[name].prose or len(answer) < 12
    asked, revealed = BOOKS[name].predictions, BOOKS[name].displays("reveal")
    assert text.count("[]{.open}") == sum(len(prediction["options"]) for prediction in asked)
    assert text.count("[]{.blank}") == len(asked)  # room for what was measured
    assert "{.ticked}" not in text
    ticked = re.findall(r"^- \[\]\{\.ticked\} (.*)$", full, flags=re.M)
    assert sorted(ticked) == sorted(verbatim(reveal["measured"]) for reveal in revealed)


@each_notebook
def test_what_a_revealing_cell_says_and_prints_is_in_no_learners_text_before_the_notes(name):
    body, full = learner(name).partition("## Read after measuring")[0], instructor(name)
    for cell in BOOKS[name].code:
        if ".reveal(" in cell.source and not is_folded(cell, "source"):
            assert cell.source in full
            for assertion in re.findall(r"^assert .*", cell.source, flags=re.M):
                assert assertion not in body
            for output in cell.outputs:
                assert f"```output\n{output.get('text', '').rstrip()}\n```" not in body
    assert set(re.findall(r"\.reveal\(.*", body)) <= {".reveal(...)"}


@some_notebooks
def test_every_figure_is_there_for_learners_too(name):
    text, shown = learner(name), read_by("learner", name).figures
    data = [output.get("data", {}) for cell in BOOKS[name].code for output in cell.outputs]
    folds = [re.search(r'base64,([^"]*)"', each.get("text/markdown", "")) for each in data]
    drawn = [each.get("image/png") or (fold and fold[1]) for each, fold in zip(data, folds, strict=True)]
    assert list(shown.values()) == [base64.b64decode(png) for png in drawn if png]
    assert [figure for figure in shown if text.count(f"({figure})") == 1] == list(shown)


@some_notebooks
def test_the_instructor_gets_claims_notes_and_minutes_and_the_learner_does_not(name):
    text, full = learner(name), instructor(name)
    for claim in (claim for cell in BOOKS[name].code for claim in claims(cell)):
        assert f"**Evidence** `{claim}`" in full
        assert verbatim(FACTS[claim].statement) in full
    assert full.count("{.minutes}") == len(BOOKS[name].sections)
    for said in ("**Listen for**", "{.minutes}", "**Evidence**"):
        assert said in full
        assert said not in text


@each_notebook
def test_the_front_of_a_worksheet_asks_and_its_back_answers(name):
    sheet = read_by("worksheet", name)
    front, _, back = sheet.worksheet().partition("::::: overleaf")
    asked = sum(len(prediction["options"]) for prediction in BOOKS[name].predictions)
    assert front.count("{.open}") == asked
    assert front.count("::::: exercise") == 1
    for answering in ("```output", ".ticked", "Take away", "reveal("):
        assert answering not in front
    assert front.count("(figure-") == (name == "11_pitfalls"), "only a figure that is asked about"
    assert "## Take away\n" in back
    assert back.count("(figure-") == min(1, len(sheet.drawings))


def test_nobody_is_told_to_click_on_paper():
    for name in BOOKS:
        outside = re.sub(r"^(`{3,}).*?^\1$", "", learner(name), flags=re.M | re.S)
        assert not re.findall(r"[Cc]lick|[Uu]nfold|[Ss]lider|Shift|</?details|</?summary|(?:VBox|HTML)\(", outside), (
            name
        )


def test_a_loop_that_the_screen_shows_line_by_line_is_printed_as_a_table(tmp_path):
    rows = [["line", "what happens"], ["`a | b`", "`step()` moves w[0]: 1 → 2."]]
    output = show(kind="steps", loop="train", rows=rows)
    cell = v4.new_code_cell("step_through(train, w)", outputs=[output], execution_count=1)
    text = Handout(book(tmp_path / "00_steps.ipynb", cell)).markdown()
    printed = "| line | what happens |\n| --- | --- |\n| `a \\| b` | `step()` moves w\\[0\\]\\: 1 → 2. |"
    assert printed in text
    asked = v4.new_code_cell("predict(...)", outputs=[show(kind="prediction", question="w?", options=["1", "2"])])
    shown = show(kind="reveal", question="w?", measured="2", because="It moves.")
    answered = v4.new_code_cell("guess.reveal(w)", outputs=[shown])
    path = book(tmp_path / "00_asked.ipynb", asked, cell, answered)
    assert printed in Handout(path).markdown().partition("## Read after measuring")[2], "it would answer the question"
    assert printed in Handout(path, answers=True).markdown().partition("moves.")[0]


# The plans


def test_a_plan_takes_its_path_as_long_as_the_path_and_its_breaks():
    text = plans.markdown(BOOKS)
    for path, most in (("90 minutes", 90), ("A day", 8 * 60)):
        rows = plans.timetable(path, plans.stops(path, BOOKS))
        assert 0 < rows[-1][1] - rows[0][0] <= most
        assert all(before[1] == after[0] for before, after in pairwise(rows))
        assert all(what in text for _, _, what in rows)
    (zeroing,) = [what for *_, what in plans.timetable("90 minutes", plans.stops("90 minutes", BOOKS)) if "02" in what]
    assert zeroing.endswith(f": {', '.join(BOOKS['02_zeroing'].short)}")


# The files


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder that the command has written for one notebook."""
    pytest.importorskip("pypandoc", reason='needs the extra: pip install -e ".[docs]"')
    import handouts

    out = tmp_path_factory.mktemp("handouts")
    with pytest.MonkeyPatch.context() as patch:
        arguments = ["--notebooks", "02_zeroing", "--paper", "Letter", "--out", str(out / "new")]
        patch.setattr(sys, "argv", ["handouts.py", *arguments])
        handouts.main()
    return out / "new"


def test_one_command_writes_every_edition(built):
    editions_of_it = [f"{edition}/02_zeroing.pdf" for edition in ("instructor", "learner", "worksheet")]
    expected = sorted(["cheatsheet.pdf", "final-test.pdf", "plans.pdf", *editions_of_it])
    assert sorted(path.relative_to(built).as_posix() for path in built.rglob("*.pdf")) == expected
    for path in built.rglob("*.pdf"):
        (box, *_) = re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", path.read_bytes())
        assert sorted(map(float, box)) == pytest.approx([612, 792], abs=0.1)


def test_markup_of_typst_stays_text_in_a_handout():
    handouts = pytest.importorskip("handouts", reason='needs the extra: pip install -e ".[docs]"')
    body = handouts.typst_of('#eval("1") costs $5, not $6: @ref [x](<a b>) </title>\n\n    #eval(2)\n')
    assert r"\#eval" in body
    assert r"\$5, not \$6: \@ref" in body
    assert '"#eval(2)")' in body  # code, in a string
    assert handouts.quoted('a" #eval(3) \\') == r'"a\" #eval(3) \\"'
