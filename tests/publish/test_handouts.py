"""The handouts: what each edition shows and keeps back, plans to the minute, whole files."""

import base64
import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace

import nbformat
import pytest
from course import FACTS
from course import NOTEBOOKS as BOOKS
from nbformat import v4

from course_utils.practice.display import COURSE
from course_utils.publish import PublishError, notebook
from course_utils.publish.contents import path_minutes
from course_utils.publish.handouts import answers, breaks, build, editions, parts, plans, press, room
from course_utils.publish.handouts.command import NOTHING_WRITTEN, WRITTEN, main
from course_utils.publish.handouts.parts import take_apart
from course_utils.publish.notebook import Notebook, claims, is_folded, tags

pytestmark = pytest.mark.skipif(
    not (find_spec("pypandoc") and find_spec("typst")), reason='needs the extra: pip install -e ".[handouts]"'
)

each_notebook = pytest.mark.parametrize("name", BOOKS)
some_notebooks = pytest.mark.parametrize("name", ["02_zeroing", "04_accumulation"])


@cache
def parts_of(name):
    return take_apart(BOOKS[name])


@cache
def learner(name):
    return editions.markdown(parts_of(name), "learner")


@cache
def instructor(name):
    return editions.markdown(parts_of(name), "instructor")


def printed_by(cell):
    return [output.text.rstrip("\n") for output in cell.outputs if "text" in output]


def text_of(pdf, *options):
    """The text of a PDF, where poppler is installed."""
    if not shutil.which("pdftotext"):
        pytest.skip("pdftotext is not installed")
    return subprocess.run(["pdftotext", *options, pdf, "-"], capture_output=True, check=True).stdout.decode()


def code(source, *outputs, count=1):
    return v4.new_code_cell(source, outputs=list(outputs), execution_count=count)


def show(**content):
    return v4.new_output("display_data", data={"text/plain": "for people", COURSE: content})


def book(path, *cells):
    title = v4.new_markdown_cell("# A title\n\n**10 minutes**\n\n*A question?*")
    nbformat.write(v4.new_notebook(cells=[title, *cells]), path)
    return Notebook(path)


# What each edition shows


@each_notebook
def test_the_learner_gets_no_solution_and_the_instructor_every_one(name):
    given = [cell.source for cell in BOOKS[name].cells if "solution" not in tags(cell)]
    given += [room.with_room(exercise.source, "")[0] for exercise in parts_of(name).of(parts.Exercise)]
    elsewhere = {line.strip() for source in given for line in source.splitlines()}
    shown, (full, _) = {line.strip() for line in learner(name)[0].splitlines()}, instructor(name)
    for cell in BOOKS[name].code:
        if "solution" in tags(cell):
            own = {line.strip() for line in cell.source.splitlines()} - elsewhere
            assert own, "a solution that says nothing of its own cannot be told from its stub"
            assert not own & shown
            assert cell.source in full


@each_notebook
def test_the_learner_gets_no_answers_and_the_instructor_all(name):
    (text, _), (full, _) = learner(name), instructor(name)
    said = BOOKS[name].prose
    for question, answer in BOOKS[name].cards:
        assert editions.verbatim(question) in text
        assert editions.verbatim(question) in full
        assert editions.verbatim(answer) in full
        assert editions.verbatim(answer) not in text or answer in said or len(answer) < 12
    asked, revealed = BOOKS[name].predictions, BOOKS[name].displays("reveal")
    assert text.count("[]{.open}") == sum(len(prediction["options"]) for prediction in asked)
    assert text.count("[]{.blank}") == len(asked)  # room for what was measured
    assert "{.ticked}" not in text
    ticked = re.findall(r"^- \[\]\{\.ticked\} (.*)$", full, flags=re.M)
    assert sorted(ticked) == sorted(editions.verbatim(reveal["measured"]) for reveal in revealed)


@each_notebook
def test_what_answers_a_prediction_is_not_printed_for_learners(name):
    (text, _), (full, _) = learner(name), instructor(name)
    for cell in BOOKS[name].code:
        hidden = is_folded(cell, "outputs")
        for printed in printed_by(cell):
            assert printed in full
            if "solution" not in tags(cell):
                assert (f"```output\n{printed}\n" in text) != hidden
        if hidden and "solution" not in tags(cell):
            for assertion in re.findall(r"^assert .*", cell.source, flags=re.M):
                assert assertion not in text
                assert assertion in full


@some_notebooks
def test_every_figure_is_there_and_those_that_answer_a_prediction_are_in_its_note(name):
    (text, shown), (_, all_of_them) = learner(name), instructor(name)
    assert shown == all_of_them
    expected, section = [], []
    for cell in BOOKS[name].cells:
        if cell.cell_type == "markdown" and re.search(r"^## ", cell.source, flags=re.M):
            section = []  # sliders draw again what their section has drawn before: that is left out
        elif "explore(" not in cell.source or not section:
            drawn = [o.data["image/png"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
            section, expected = section + drawn, expected + drawn
    assert list(shown.values()) == [*map(base64.b64decode, expected)]
    body, _, notes = text.partition("## Read after measuring")
    for figure in parts_of(name).of(parts.Figure):
        assert (f"(figure-{figure.number}.png)" in body) != (f"(figure-{figure.number}.png)" in notes)
        assert f"(figure-{figure.number}.png)" in notes or not figure.spoiler


@some_notebooks
def test_the_instructor_gets_claims_notes_and_minutes_and_the_learner_does_not(name):
    (text, _), (full, _) = learner(name), instructor(name)
    for claim in (claim for cell in BOOKS[name].code for claim in claims(cell)):
        assert f"**Evidence** `{claim}`" in full
        assert editions.verbatim(FACTS[claim].statement) in full
    assert full.count("{.minutes}") == len(BOOKS[name].headings)
    assert "**Listen for**" in full
    assert "**Listen for**" not in text
    assert "{.minutes}" not in text


@some_notebooks
def test_what_explains_an_answer_is_a_note_at_the_end_of_the_learners_handout_before_the_takeaways(name):
    (text, _), (full, _) = learner(name), instructor(name)
    body, _, notes = text.partition("## Read after measuring")
    assert "Read after measuring" not in full
    assert "What it means" not in full
    pointers = re.findall(r"What it means: note (\d+) at the end", body)
    assert pointers == re.findall(r"^\*\*Note (\d+)\*\*", notes, flags=re.M) != []
    printed = [part for part in parts_of(name).parts if isinstance(part, parts.Measured | parts.Prose)]
    for part, following in pairwise(printed):
        if isinstance(part, parts.Measured) and isinstance(following, parts.Prose):
            first = following.text.split("\n\n")[0]
            assert first not in body
            assert first in notes
            assert first in full
    assert "\n## Takeaways\n" not in body
    assert ("\n## Takeaways\n" in notes) == ("\n## Takeaways\n" in BOOKS[name].prose)


@each_notebook
def test_no_code_of_the_learners_handout_says_what_is_revealed(name):
    (text, _), (full, _) = learner(name), instructor(name)
    assert set(re.findall(r"\.reveal\(.*", text)) <= {".reveal(...)"}
    assert ".reveal(...)" not in full
    found = parts_of(name).parts
    for place, part in enumerate(found):
        if isinstance(part, parts.Measured):
            cell = next(other for other in reversed(found[:place]) if isinstance(other, parts.Code))
            for line in cell.source.splitlines():
                if line.startswith("print(") and answers.says(line, part.prediction.answer):
                    assert line not in text
        if isinstance(part, parts.Figure) and part.spoiler:
            assert part.caption not in text
            assert part.caption in full.replace("\\", "")


@some_notebooks
def test_what_is_for_a_screen_or_a_formatter_is_not_printed(name):
    for text, _ in (learner(name), instructor(name)):
        outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.M | re.S)  # code may say what it likes
        assert not re.findall(r"\b(VBox|HTML|RadioButtons|Figure)\(|</?(details|summary|div|table)\b", outside)
        assert "# fmt: skip" not in text
        assert not re.search(r"^(progress|final_test)\(", text, flags=re.M)


def test_a_loop_that_the_screen_shows_line_by_line_is_printed_as_a_filmstrip(tmp_path):
    track = {"loop": "train", "head": ["line", "what happens"], "rows": [["`a | b`", "`step()` moves w[0]: 1 → 2."]]}
    output = show(kind="steps", tracks=[track], versions=["as written", "without zero_grad()"])
    handout = take_apart(book(tmp_path / "00_steps.ipynb", code("step_through(train, w)", output)))
    assert [part.rows for part in handout.of(parts.Filmstrip)] == [track["rows"]]
    for edition in ("learner", "instructor"):
        text, _ = editions.markdown(handout, edition)
        assert "| line | what happens |\n| --- | --- |\n| `a \\| b` | `step()` moves w\\[0\\]\\: 1 → 2. |" in text
        assert "for people" not in text
        assert "The notebook also has the loop without zero\\_grad()." in text
        assert "[`a | b`]" in press.typst_of(text)


def test_what_goes_on_about_an_answer_goes_on_in_its_note(tmp_path):
    answer = code("guess.reveal(4)", show(kind="reveal", question="how many?", measured="4"))
    answer.metadata["jupyter"] = {"outputs_hidden": True}
    cells = [
        code("guess = predict()", show(kind="prediction", question="how many?", options=["4", "8"])),
        answer,
        v4.new_markdown_cell("Because there are four."),
        code("print(count)\nassert count == 4", v4.new_output("stream", text="all four\n")),
        v4.new_markdown_cell("All of them.\n\nNow we count others."),
        code("print(others)", v4.new_output("stream", text="no others\n")),
    ]
    text, _ = editions.markdown(take_apart(book(tmp_path / "x.ipynb", *cells)), "learner")
    body, _, notes = text.partition("## Read after measuring")
    assert body.count("What it means: note 1 at the end.") == 1
    for said in ("Because there are four.", "```output\nall four\n```", "All of them."):
        assert said in notes
        assert said not in body
    for said in ("print(count)", "Now we count others.", "```output\nno others\n```"):
        assert said in body
        assert said not in notes
    assert "assert count" not in text


def test_the_same_option_in_two_open_predictions_is_told_apart_by_its_question(tmp_path):
    ask = [show(kind="prediction", question=q, options=["a", other]) for q, other in (("one?", "b"), ("two?", "c"))]
    answers = [show(kind="reveal", question=question, measured="a") for question in ("two?", "one?")]
    handout = take_apart(book(tmp_path / "x.ipynb", code("ask()", *ask), code("tell()", *answers)))
    first, second = handout.of(parts.Prediction)
    assert (first.answer, second.answer) == ("a", "a")
    assert [measured.prediction for measured in handout.of(parts.Measured)] == [second, first]
    with pytest.raises(PublishError, match=r"the prediction 'two\?' is never revealed"):
        take_apart(book(tmp_path / "x.ipynb", code("ask()", *ask), code("tell()", answers[1])))
    with pytest.raises(PublishError, match=r"'a' is revealed, but 'two\?' is no open prediction"):
        take_apart(book(tmp_path / "x.ipynb", code("tell()", answers[0])))


def test_room_to_write_is_derived_from_the_solution():
    stub, long = "def f(a):\n    ...\n\n\n_ = check('f', f)", "x" * (2 * room.HAND + 1)
    assert room.with_room(stub, f"# why\ndef f(a):\n    {long}\n    return a")[0].count(room.BLANK) == 4
    assert room.with_room(stub, f"def f(a):\n    {long}\n    return a", most=3)[0].count(room.BLANK) == 3
    assert room.with_room('order = ""  # letters', "order = 'B A'") == (f"order = {room.BLANK * 24}  # letters", 3)
    reasons = "# one\n# two\n# three\n# four\nx = {'a': 1}"
    assert room.with_room("x = {'a': ...}", reasons) == (f'x = {{\n    "a": {room.BLANK * 12},\n}}', 4)


@each_notebook
def test_the_front_of_a_worksheet_asks_and_its_back_answers(name):
    text, figures = editions.markdown(parts_of(name), "worksheet")
    predictions = parts_of(name).of(parts.Prediction)
    front, _, back = text.partition("::::: overleaf")
    asked = re.sub(r"::::: prediction\n.*?:::::", "", front, flags=re.S).replace("\\", "")
    for prediction in predictions:
        assert f"**Prediction {prediction.number}.**" in front
        if len(prediction.answer) >= 12 and prediction.answer != "the loop that forgets":  # which names a loop
            assert prediction.answer not in asked
    assert front.count("{.open}") == sum(len(prediction.options) for prediction in predictions)
    assert front.count("::::: {.exercise") == min(1, len(parts_of(name).of(parts.Exercise)))
    for answering in ("```output", ".ticked", "figure-", "Take away", "reveal("):
        assert answering not in front
    assert ("## Take away\n" in back) == ("\n## Takeaways\n" in BOOKS[name].prose)
    assert [figure for figure in figures if f"({figure})" in back] == list(figures)
    assert len(figures) <= 1


# The files


def test_a_long_block_breaks_between_statements_where_it_is_least_indented():
    loop = ["def f():", *["    a = 1"] * 7, "    for b in c:", *["        d(", "            1)"] * 4, "    return a"]
    assert breaks.groups("\n".join(loop), "python") == [(1, 8), (9, 18)]
    with_comment = ["a = 1"] * 7 + ["# why", "b = 2"] + ["b = 3"] * 6
    assert breaks.groups("\n".join(with_comment), "python") == [(1, 7), (8, 15)]
    assert breaks.groups("\n".join(["x = ["] + ["    1,"] * 20 + ["]"]), "python") == [(1, 22)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder that one command has written, and nothing else."""
    out = tmp_path_factory.mktemp("handouts") / "new" / "build"
    written = build(out, names=("02_zeroing",))
    assert sorted(path.relative_to(out).as_posix() for path in written) == [
        "cheatsheet.pdf", "instructor/02_zeroing.pdf", "learner/02_zeroing.pdf", "plans.pdf",
        "worksheet/02_zeroing.pdf",
    ]  # fmt: skip
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(written)
    return out


def test_the_pdfs_say_what_their_editions_should_and_the_worksheet_is_one_sheet(built):
    learners, instructors = (
        " ".join(text_of(built / edition / "02_zeroing.pdf", "-layout").split())
        for edition in ("learner", "instructor")
    )
    for answer in ('third_step = {"fbs": 111', "Prediction 2, measured: 8"):
        assert answer in instructors
        assert answer not in learners
    for both in (
        "How many of the 24 orders",
        "pytorchTutorial#19",
        "github.com/patrickloeber/pytorchTutorial/issues/19",
    ):
        assert both in learners.replace("\u200b", "")
        assert both in instructors.replace("\u200b", "")
    assert text_of(built / "worksheet" / "02_zeroing.pdf").count("\f") == 2


@pytest.mark.parametrize(
    ("file", "side"), [("learner/02_zeroing.pdf", 19), ("instructor/02_zeroing.pdf", 19), ("cheatsheet.pdf", 10)]
)
def test_no_word_of_a_pdf_leaves_its_column(built, file, side):
    boxes = text_of(built / file, "-bbox")
    width = float(re.search(r'<page width="([\d.]+)"', boxes)[1])
    words = re.findall(r'<word xMin="([\d.]+)" yMin="[\d.]+" xMax="([\d.]+)"', boxes)
    margin = side / 25.4 * 72 - 2.5  # a hyphen or a comma may hang out by its own width
    assert min(float(left) for left, _ in words) >= margin
    assert max(float(right) for _, right in words) <= width - margin


@pytest.mark.parametrize("edition", ["learner", "instructor"])
def test_no_line_of_code_or_of_output_is_broken(built, edition):
    text, _ = editions.markdown(parts_of("02_zeroing"), edition)
    pdf = text_of(built / edition / "02_zeroing.pdf", "-layout")
    printed = {" ".join(line.split()) for line in pdf.splitlines()}
    blocks = re.findall(r"^```(?:python|output)\n(.*?)^```", text, flags=re.M | re.S)
    lines = [" ".join(line.split()) for block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) > 80
    assert [line for line in lines if line not in printed] == []


# The plans


@pytest.mark.parametrize(("path", "most"), [("90 minutes", 90), ("one day", 8 * 60)])
def test_a_plan_takes_its_path_as_long_as_the_path_and_its_breaks(path, most):
    rows = plans.timetable(path, BOOKS)
    pauses = sum(minutes for _, minutes in plans.PAUSES.values()) if path == "one day" else 0
    assert rows[-1][1] - rows[0][0] == path_minutes(BOOKS, path) + pauses <= most
    assert all(before[1] == after[0] for before, after in pairwise(rows))
    assert 0.1 < plans.hands_on(path, BOOKS) < 0.9
    text = plans.markdown(BOOKS)
    assert all(what in text for _, _, what in rows)


def test_a_plan_names_the_sections_of_its_path():
    (row,) = [what for _, _, what in plans.timetable("90 minutes", BOOKS) if "02" in what]
    assert row.endswith(f": {', '.join(BOOKS['02_zeroing'].on_path('90 minutes'))}")


# What goes wrong


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (code("1 / 0", v4.new_output("error", ename="ZeroDivisionError", evalue="division by zero")),
         "broken.ipynb: cell 2 ends in an error (ZeroDivisionError: division by zero)"),
        (code("1", count=None), "broken.ipynb: cell 2 has not been run"),
    ],
)  # fmt: skip
def test_a_broken_notebook_is_a_clear_error_and_nothing_is_written(cell, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    book(tmp_path / "notebooks" / "broken.ipynb", cell)
    monkeypatch.setattr(notebook, "folder", lambda: tmp_path / "notebooks")
    assert main(["--edition", "learner", "--out", str(tmp_path / "build")]) == NOTHING_WRITTEN
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notebooks"]


@pytest.mark.parametrize(
    ("options", "installed", "message"),
    [
        (["--notebooks", "zeroing"], True, "there is no notebook 'zeroing', only 00_start, 01_gradients"),
        (["--edition", "plans"], True, "handouts: cannot write in {}: "),
        ([], False, 'pypandoc and typst not found; install the extra: pip install -e ".[handouts]"'),
    ],
)
def test_what_cannot_be_built_is_a_clear_error(options, installed, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "build"
    if not installed:
        monkeypatch.setattr(press, "find_spec", lambda name: None)
    assert main([*options, "--out", str(out)]) == NOTHING_WRITTEN
    assert message.format(out) in capsys.readouterr().err


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(28, "No space left")])
def test_after_an_error_or_an_interrupt_nothing_is_half_written(problem, tmp_path, monkeypatch, capsys):
    calls = []

    def pdf(*_, **__):
        calls.append(1)
        if len(calls) == 3:
            raise problem
        return b"a page"

    monkeypatch.setattr(press, "pdf", pdf)
    (tmp_path / "learner").mkdir()
    (tmp_path / "learner" / "00_start.pdf").write_bytes(b"of yesterday")
    assert main(["--edition", "learner", "--out", str(tmp_path)]) == NOTHING_WRITTEN
    assert len(calls) >= 3
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")] == ["learner/00_start.pdf"]
    assert (tmp_path / "learner" / "00_start.pdf").read_bytes() == b"of yesterday"
    assert re.search("interrupted|No space left", capsys.readouterr().err)


def test_options_choose_what_is_built_and_links_lead_to_it_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(press, "pdf", lambda text, *others, **_: f"{others[3]} {text}".encode())
    options = ["--edition", "learner", "plans", "--notebooks", "02_zeroing", "01_gradients", "--paper", "Letter"]
    assert main([*options, "--out", str(tmp_path)]) == WRITTEN
    made = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.pdf")}
    assert made.keys() == {"learner/02_zeroing.pdf", "learner/01_gradients.pdf", "plans.pdf"}
    assert all(text.startswith("letter ") for text in made.values())
    links = set(re.findall(r"\]\(([\w./]+\.(?:pdf|ipynb))", made["learner/02_zeroing.pdf"]))
    assert links == {"01_gradients.pdf"}


def test_errors_of_pandoc_and_typst_are_passed_on(monkeypatch):
    with pytest.raises(PublishError, match="A title: Typst says: unknown variable: no"):
        press.pdf("```{=typst}\n#no\n```", {}, "A title", "", "a4")
    failed = SimpleNamespace(returncode=1, stderr=b"no such filter", stdout=b"")
    monkeypatch.setattr(press.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(PublishError, match="pandoc says: no such filter"):
        press.typst_of("text")

    def gone(*_, **__):
        raise FileNotFoundError("no pandoc")

    monkeypatch.setattr(press.subprocess, "run", gone)
    with pytest.raises(PublishError, match=r"pandoc cannot be run \(no pandoc\); install the extra"):
        press.typst_of("text")
