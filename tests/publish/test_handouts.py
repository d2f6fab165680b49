"""The handouts: what each edition shows and keeps back, plans to the minute, whole files."""

import base64
import re
import shutil
import subprocess
from copy import deepcopy
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
from course_utils.publish.handouts import (
    answers,
    breaks,
    build,
    editions,
    parts,
    plans,
    press,
    room,
    screen,
)
from course_utils.publish.handouts.command import NOTHING_WRITTEN, WRITTEN, main
from course_utils.publish.handouts.parts import take_apart
from course_utils.publish.notebook import Notebook, as_course, claims, is_folded, tags

pytestmark = pytest.mark.skipif(
    not (find_spec("pypandoc") and find_spec("typst")), reason='needs the extra: pip install -e ".[handouts]"'
)

each_notebook = pytest.mark.parametrize("name", BOOKS)
some_notebooks = pytest.mark.parametrize("name", ["02_zeroing", "05_precision"])


@cache
def parts_of(name):
    return take_apart(BOOKS[name])


@cache
def learner(name):
    return editions.markdown(parts_of(name), "learner")


@cache
def instructor(name):
    return editions.markdown(parts_of(name), "instructor")


def outputs(cell, kind):
    """What a cell has printed, or the images that it shows."""
    if kind == "text":
        return [output.text.rstrip("\n") for output in cell.outputs if "text" in output]
    return [base64.b64decode(o.data[kind]) for o in cell.outputs if kind in o.get("data", {})]


def text_of(pdf):
    """The text of a PDF, where poppler is installed."""
    if not shutil.which("pdftotext"):
        pytest.skip("pdftotext is not installed")
    return subprocess.run(["pdftotext", "-layout", pdf, "-"], capture_output=True, check=True).stdout.decode()


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
def test_a_loop_with_a_bug_to_find_is_printed_without_the_verdict_that_names_it(name):
    text, _ = learner(name)
    for cell in BOOKS[name].code:
        if "find-the-bug" in tags(cell):
            (output,) = [output for output in cell.outputs if as_course(output).get("kind") == "verdict"]
            verdict, said = as_course(output), output.data["text/plain"]
            assert not verdict["passed"]
            loop = re.sub(r"\n+_ = check\(.*", "", cell.source.replace("  # fmt: skip", ""), flags=re.S)
            assert loop in text
            for secret in (said, editions.verbatim(said), verdict["message"], editions.verbatim(verdict["message"])):
                assert secret not in text


@each_notebook
def test_the_learner_gets_no_answers_and_the_instructor_all(name):
    (text, _), (full, _) = learner(name), instructor(name)
    said = BOOKS[name].prose
    for question, answer in BOOKS[name].cards:
        assert editions.verbatim(question) in text
        assert editions.verbatim(question) in full
        assert editions.verbatim(answer) in full
        assert editions.verbatim(answer) not in text or answer in said or len(answer) < 12
    assert "{.ticked}" not in text


@some_notebooks
def test_every_prediction_is_a_box_per_option_and_the_measured_one_is_ticked_for_the_instructor(name):
    (text, _), (full, _) = learner(name), instructor(name)
    asked, revealed = BOOKS[name].predictions, BOOKS[name].displays("reveal")
    assert text.count("[]{.open}") == sum(len(prediction["options"]) for prediction in asked)
    ticked = re.findall(r"^- \[\]\{\.ticked\} (.*)$", full, flags=re.M)
    assert sorted(ticked) == sorted(editions.verbatim(reveal["measured"]) for reveal in revealed)
    assert text.count("[]{.blank}") == len(asked)  # room for what was measured


@each_notebook
def test_what_answers_a_prediction_is_not_printed_for_learners(name):
    (text, _), (full, _) = learner(name), instructor(name)
    for cell in BOOKS[name].code:
        hidden = is_folded(cell, "outputs")
        for printed in outputs(cell, "text"):
            assert printed in full
            if "solution" not in tags(cell):
                assert (f"```output\n{printed}\n" in text) != hidden
        if hidden and "solution" not in tags(cell):
            for assertion in re.findall(r"^assert .*", cell.source, flags=re.M):
                assert assertion not in text
                assert assertion in full


def drawn_on_paper(name):
    """The code cells, without those whose sliders draw again what their section has drawn before."""
    cells, drawn = [], False
    for cell in BOOKS[name].cells:
        drawn &= not (cell.cell_type == "markdown" and re.search(r"^## ", cell.source, flags=re.M))
        if cell.cell_type == "code" and not ("explore(" in cell.source and drawn):
            cells.append(cell)
            drawn |= bool(outputs(cell, "image/png"))
    return cells


@some_notebooks
def test_every_figure_is_there(name):
    (_, shown), (_, all_of_them) = learner(name), instructor(name)
    cells = drawn_on_paper(name)
    assert list(all_of_them.values()) == [png for cell in cells for png in outputs(cell, "image/png")]
    assert list(shown.values()) == list(all_of_them.values())  # those that answer a prediction are in its note
    body, _, notes = learner(name)[0].partition("## Read after measuring")
    for figure in parts_of(name).of(parts.Figure):
        assert (f"(figure-{figure.number}.png)" in body) != (f"(figure-{figure.number}.png)" in notes)
        assert f"(figure-{figure.number}.png)" in notes or not figure.spoiler


@some_notebooks
def test_every_claim_and_every_number_that_its_cell_prints_are_in_the_instructors_handout(name):
    text, _ = instructor(name)
    for cell in BOOKS[name].code:
        for claim in claims(cell):
            assert f"**Evidence** `{claim}`" in text
            assert editions.verbatim(FACTS[claim].statement) in text
            for printed in outputs(cell, "text"):
                assert set(re.findall(r"\d[\d,.]*", printed)) <= set(re.findall(r"\d[\d,.]*", text))


@some_notebooks
def test_no_text_of_a_widget_and_no_raw_html_is_printed(name):
    for text, _ in (learner(name), instructor(name)):
        outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.M | re.S)  # code may say what it likes
        assert not re.findall(r"\b(VBox|HTML|RadioButtons|Figure)\(|</?(details|summary|div|table)\b", outside)


@some_notebooks
def test_the_instructor_gets_notes_and_minutes_and_the_learner_does_not(name):
    (text, _), (full, _) = learner(name), instructor(name)
    assert "**Listen for**" in full
    assert "**Listen for**" not in text
    assert full.count("{.minutes}") == len(BOOKS[name].sections)
    assert "{.minutes}" not in text


@some_notebooks
def test_what_explains_an_answer_is_a_note_at_the_end_of_the_learners_handout(name):
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
def test_what_is_for_a_formatter_or_a_screen_is_not_printed(name):
    for text, _ in (learner(name), instructor(name)):
        assert "# fmt: skip" not in text
        assert not re.search(r"^(progress|final_test)\(", text, flags=re.M)


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (
            "## See it\n\nPress *Next* and watch `w`. Tab leads to *Next*, and Space presses it.",
            "## See it\n\nWatch `w`.",
        ),
        ("Run the cell, and fix it. (It's folded because it looks\nlike an answer.)\n\nNext.", "Fix it.\n\nNext."),
        ("Then name the script and run the cell.", "Then name the script."),
    ],
)
def test_paper_leaves_out_what_only_a_screen_can_do(said, printed):
    assert screen.for_paper(said) == printed


def test_a_loop_that_the_screen_shows_line_by_line_is_printed_as_a_filmstrip(tmp_path):
    track = {"loop": "train", "head": ["line", "what happens"], "rows": [["`a | b`", "`step()` moves w[0]: 1 → 2."]]}
    shown = {COURSE: {"kind": "steps", "tracks": [track], "versions": ["as written", "without zero_grad()"]}}
    output = v4.new_output("display_data", shown | {"text/plain": "train, step by step"})
    handout = take_apart(book(tmp_path / "00_steps.ipynb", code("step_through(train, w)", output)))
    assert [part.rows for part in handout.of(parts.Filmstrip)] == [track["rows"]]
    for edition in ("learner", "instructor"):
        text, _ = editions.markdown(handout, edition)
        assert "| line | what happens |\n| --- | --- |\n| `a \\| b` | `step()` moves w\\[0\\]\\: 1 → 2. |" in text
        assert "train, step by step" not in text
        assert "The notebook also has the loop without zero\\_grad()." in text
        assert "[`a | b`]" in press.typst_of(text)


def test_what_goes_on_about_an_answer_goes_on_in_its_note(tmp_path):
    def show(**content):
        return v4.new_output("display_data", data={"text/plain": "for people", COURSE: content})

    def printed(text):
        return v4.new_output("stream", text=text)

    answer = code("guess.reveal(4)", show(kind="reveal", question="how many?", measured="4"))
    answer.metadata["jupyter"] = {"outputs_hidden": True}
    cells = [
        code("guess = predict()", show(kind="prediction", question="how many?", options=["4", "8"])),
        answer,
        v4.new_markdown_cell("Because there are four."),
        code("print(count)\nassert count == 4", printed("all four\n")),
        v4.new_markdown_cell("All of them.\n\nNow we count others."),
        code("print(others)", printed("no others\n")),
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


@some_notebooks
def test_learners_read_the_takeaways_after_the_notes(name):
    text, _ = learner(name)
    assert ("\n## Takeaways\n" in text) == ("\n## Takeaways\n" in BOOKS[name].prose)
    assert "\n## Takeaways\n" not in text.partition("## Read after measuring")[0]


# Room to write


def test_room_is_derived_from_the_solution():
    stub, long = "def f(a):\n    ...\n\n\n_ = check('f', f)", "x" * (2 * room.HAND + 1)
    assert room.with_room(stub, f"# why\ndef f(a):\n    {long}\n    return a")[0].count(room.BLANK) == 4
    assert room.with_room(stub, f"def f(a):\n    {long}\n    return a", most=3)[0].count(room.BLANK) == 3
    assert room.with_room('order = ""  # letters', "order = 'B A'") == (f"order = {room.BLANK * 24}  # letters", 3)
    reasons = "# one\n# two\n# three\n# four\nx = {'a': 1}"
    assert room.with_room("x = {'a': ...}", reasons) == (f'x = {{\n    "a": {room.BLANK * 12},\n}}', 4)


# The worksheet


@each_notebook
def test_the_front_of_a_worksheet_asks_and_its_back_answers(name):
    text, figures = editions.markdown(parts_of(name), "worksheet")
    front, _, back = text.partition("::::: overleaf")
    for prediction in parts_of(name).of(parts.Prediction):
        assert f"**Prediction {prediction.number}.**" in front
    assert front.count("{.open}") == sum(len(p.options) for p in parts_of(name).of(parts.Prediction))
    assert front.count("::::: {.exercise") == 1
    for answering in ("```output", ".ticked", "figure-", "Take away", "reveal("):
        assert answering not in front
    asked = re.sub(r"::::: prediction\n.*?:::::", "", front, flags=re.S).replace("\\", "")
    for prediction in parts_of(name).of(parts.Prediction):
        if len(prediction.answer) >= 12 and prediction.answer != "the loop that forgets":  # which names a loop
            assert prediction.answer not in asked
    assert ("## Take away\n" in back) == ("\n## Takeaways\n" in BOOKS[name].prose)
    assert [figure for figure in figures if f"({figure})" in back] == list(figures)
    assert len(figures) <= 1


# Where a page may end


def test_a_long_block_breaks_between_statements_where_it_is_least_indented():
    loop = ["def f():", *["    a = 1"] * 7, "    for b in c:", *["        d(", "            1)"] * 4, "    return a"]
    assert breaks.groups("\n".join(loop), "python") == [(1, 8), (9, 18)]
    with_comment = ["a = 1"] * 7 + ["# why", "b = 2"] + ["b = 3"] * 6
    assert breaks.groups("\n".join(with_comment), "python") == [(1, 7), (8, 15)]
    assert breaks.groups("\n".join(["x = ["] + ["    1,"] * 20 + ["]"]), "python") == [(1, 22)]


def test_long_lines_of_output_go_on_below_themselves_and_no_word_is_torn(tmp_path):
    words = [f"--flag-number-{n}=a/path/to/{n}" for n in range(12)]
    text = f"# T\n\n```output\nrow: {' '.join(words)}\nshort\n```\n\nUse `torchrun {' '.join(words)}` here."
    (tmp_path / "x.pdf").write_bytes(press.pdf(text, {}, "T", "", "a4"))
    lines = text_of(tmp_path / "x.pdf").splitlines()
    assert [word for line in lines for word in line.split() if word.startswith("--")] == words * 2
    (row,) = [place for place, line in enumerate(lines) if line.strip().startswith("row:")]
    assert lines[row + 1].index("--") > lines[row].index("row:")


@pytest.mark.parametrize("lines", [41, 47])
def test_a_short_table_stays_on_one_page(lines, tmp_path):
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| row{n} | {n} |" for n in range(8))
    text = "\n\n".join(["# T", *["A line."] * lines, table, *["The end."] * 40])
    (tmp_path / "x.pdf").write_bytes(press.pdf(text, {}, "T", "", "a4"))
    pages = text_of(tmp_path / "x.pdf").split("\f")
    assert [page.count("row") for page in pages if "row" in page] == [8]


@pytest.mark.parametrize("lines", [39])
def test_the_title_of_a_long_solution_stays_with_its_code(lines, tmp_path):
    long = parts.Solution("\n".join(f"line{n} = {n}" for n in range(2 * breaks.WHOLE + 6)), "passed")
    (solution,) = editions._Instructor.show_solution(None, long)
    text = "\n\n".join(["# T", *["A paragraph."] * lines, solution, *["The end."] * 40])
    (tmp_path / "x.pdf").write_bytes(press.pdf(text, {}, "T", "", "a4"))
    (page,) = [page for page in text_of(tmp_path / "x.pdf").split("\f") if "Solution" in page]
    assert "line0 = 0" in page


def test_sources_are_numbered_row_by_row_and_a_commit_is_printed_short(tmp_path):
    links = [f"https://example.org/{n}" for n in range(1, 30)]
    commit = "https://example.org/blob/" + "0123456789" * 4 + "/gradient-accumulation.py"
    text = "# T\n\n" + ", ".join(f"[l{n}]({link})" for n, link in enumerate([*links, commit]))
    (tmp_path / "x.pdf").write_bytes(press.pdf(text, {}, "T", "", "a4"))
    printed = text_of(tmp_path / "x.pdf").partition("Sources")[2]
    numbers = [int(number) for number in re.findall(r"(?:^|\s)(\d+)\s+example", printed)]
    assert numbers == list(range(1, 31))
    assert "blob/01234567/gradient-accumulation.py" in printed.replace("\u200b", "")


def test_the_same_option_in_two_open_predictions_is_told_apart_by_its_question(tmp_path):
    def show(**content):
        return v4.new_output("display_data", data={"text/plain": "for people", COURSE: content})

    ask = [show(kind="prediction", question=q, options=["a", other]) for q, other in (("one?", "b"), ("two?", "c"))]
    answers = [show(kind="reveal", question="two?", measured="a"), show(kind="reveal", question="one?", measured="a")]
    handout = take_apart(book(tmp_path / "x.ipynb", code("ask()", *ask), code("tell()", *answers)))
    first, second = handout.of(parts.Prediction)
    assert (first.answer, second.answer) == ("a", "a")
    assert [measured.prediction for measured in handout.of(parts.Measured)] == [second, first]
    with pytest.raises(PublishError, match=r"the prediction 'two\?' is never revealed"):
        take_apart(book(tmp_path / "x.ipynb", code("ask()", *ask), code("tell()", answers[1])))
    with pytest.raises(PublishError, match=r"'a' is revealed, but 'two\?' is no open prediction"):
        take_apart(book(tmp_path / "x.ipynb", code("tell()", answers[0])))


# The files


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("handouts") / "new" / "build"
    return out, build(out, names=("02_zeroing",))


def test_one_command_writes_every_edition_and_leaves_nothing_else(built):
    out, written = built
    assert sorted(path.relative_to(out).as_posix() for path in written) == [
        "cheatsheet.pdf", "instructor/02_zeroing.pdf", "learner/02_zeroing.pdf", "plans.pdf",
        "worksheet/02_zeroing.pdf",
    ]  # fmt: skip
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(written)


def test_the_pdf_says_what_its_edition_should(built):
    out, _ = built
    text, full = (" ".join(text_of(out / edition / "02_zeroing.pdf").split()) for edition in ("learner", "instructor"))
    solution = 'third_step = {"fbs": 111'
    assert solution in full
    assert solution not in text
    for both in (
        "How many of the 24 orders of the four calls",
        "RAE#67",
        "github.com/bytetriper/RAE/issues/67",
    ):
        assert both in text.replace("\u200b", "")
        assert both in full.replace("\u200b", "")
    assert "It says: discarded-gradients" in text
    assert "trains 8 zfbs zbsf" in full
    assert "trains 8 zfbs zbsf" not in text


def test_a_worksheet_is_one_sheet_of_paper(built):
    assert text_of(built[0] / "worksheet" / "02_zeroing.pdf").count("\f") == 2


def test_no_word_of_a_pdf_leaves_its_column(built):
    if not shutil.which("pdftotext"):
        pytest.skip("pdftotext is not installed")
    out, _ = built
    for path, side in (("learner/02_zeroing.pdf", 19), ("instructor/02_zeroing.pdf", 19), ("cheatsheet.pdf", 10)):
        command = ["pdftotext", "-bbox", out / path, "-"]
        boxes = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        width = float(re.search(r'<page width="([\d.]+)"', boxes)[1])
        words = re.findall(r'<word xMin="([\d.]+)" yMin="[\d.]+" xMax="([\d.]+)"', boxes)
        margin = side / 25.4 * 72 - 2.5  # a hyphen or a comma may hang out by its own width
        assert min(float(left) for left, _ in words) >= margin
        assert max(float(right) for _, right in words) <= width - margin


def test_no_line_of_code_or_of_output_is_broken(built):
    out, _ = built
    for edition, text in (("learner", learner("02_zeroing")[0]), ("instructor", instructor("02_zeroing")[0])):
        printed = {" ".join(line.split()) for line in text_of(out / edition / "02_zeroing.pdf").splitlines()}
        blocks = re.findall(r"^```(?:python|output)\n(.*?)^```", text, flags=re.M | re.S)
        lines = [" ".join(line.split()) for block in blocks for line in block.splitlines() if line.strip()]
        assert len(lines) > 150
        assert [line for line in lines if line not in printed] == []


# The plans


def on_paper(plan, books):
    """The total that a plan's heading names; and for each item of its timetable the start, the end and the minutes."""
    text = plans.markdown(books).partition(f"## {plan.title}: ")[2].partition("\n## ")[0]
    hours, minutes = re.match(r"(\d+) hours?(?: (\d+) minutes)?\n", text).groups(default="0")
    rows = re.findall(r"^\| (\d+):(\d\d) \| (\d+):(\d\d) \| \*\*(\d+)", text, flags=re.M)
    times = [(60 * int(h) + int(m), 60 * int(to_h) + int(to_m), int(n)) for h, m, to_h, to_m, n in rows]
    return 60 * int(hours) + int(minutes), times


@pytest.mark.parametrize("plan", plans.PLANS, ids=lambda plan: plan.title)
def test_a_plan_goes_from_its_start_to_its_total_on_the_five_minutes(plan):
    total, times = on_paper(plan, BOOKS)
    assert all(end - start == minutes for start, end, minutes in times)
    assert all(before[1] == after[0] for before, after in pairwise(times))
    assert all(end % 5 == 0 for _, end, _ in times)
    assert times[-1][1] - times[0][0] == total == sum(plans.minutes_of(item, BOOKS) for item in plan.items)
    longest = 0  # nobody sits longer than this without a break
    for item in plan.items:
        longest = 0 if getattr(item, "what", "") in ("Break", "Lunch") else longest + plans.minutes_of(item, BOOKS)
        assert longest <= 95


@pytest.mark.parametrize("plan", plans.PLANS, ids=lambda plan: plan.title)
def test_in_a_plan_people_work_themselves_for_two_fifths_of_the_time(plan):
    assert plans.hands_on(plan, BOOKS) >= 0.4
    for session in (item for item in plan.items if isinstance(item, plans.Session)):
        assert session.exercises >= 1, "the first exercise is never left out"
        own = [minutes for _, minutes, own in plans.parts(session, BOOKS) if own]
        assert own == [sum(plans.exercise_minutes(BOOKS[session.notebook])[: session.exercises])]
        assert sum(minutes for _, minutes, _ in plans.parts(session, BOOKS)) % 5 == 0
        assert session.goal


def test_exercises_and_audits_are_hands_on_and_breaks_are_not_counted(monkeypatch):
    monkeypatch.setattr(plans, "parts", lambda *_: [("a section", 20, False), ("exercises", 10, True)])
    items = (plans.Session("any", "a goal", ()), plans.Pause("Break", 15), plans.Pause("Lunch", 60))
    items += (plans.Pause("Audit", 25, hands_on=True), plans.Pause("Questions", 5))
    assert plans.hands_on(plans.Plan("A plan", "", items), {}) == 35 / 60


def test_plans_are_as_long_as_they_are_called():
    assert [on_paper(plan, BOOKS)[0] for plan in plans.PLANS[:1]] == [90]
    half, full = (on_paper(plan, BOOKS)[0] for plan in plans.PLANS[1:])
    assert half <= 4 * 60
    assert full <= 8 * 60


def test_a_section_that_takes_longer_makes_the_plans_longer_and_a_missing_one_is_an_error():
    books = BOOKS | {"02_zeroing": deepcopy(BOOKS["02_zeroing"])}
    books["02_zeroing"].sections["Step 6"] += 10
    for plan in plans.PLANS:
        assert on_paper(plan, books)[0] == on_paper(plan, BOOKS)[0] + 10
    del books["02_zeroing"].sections["Step 6"]
    with pytest.raises(PublishError, match="'Step 6' of 02_zeroing"):
        plans.markdown(books)
    few = plans.Session("02_zeroing", "a goal", (), exercises=9)
    with pytest.raises(PublishError, match="9 exercises of 02_zeroing, which has 3"):
        plans.parts(few, BOOKS)


# What goes wrong


TITLE = "# A title\n\n**10 minutes**\n\n*A question?*"


def code(source, *outputs, count=1):
    return v4.new_code_cell(source, outputs=list(outputs), execution_count=count)


def book(path, *cells):
    nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell(TITLE), *cells]), path)
    return Notebook(path)


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


def test_an_unknown_notebook_is_an_error_that_lists_the_known(tmp_path, capsys):
    assert main(["--notebooks", "zeroing", "--out", str(tmp_path / "build")]) == NOTHING_WRITTEN
    error = capsys.readouterr().err
    assert "there is no notebook 'zeroing', only 00_start, 01_gradients" in error
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--edition", "plans", "--out", str(tmp_path / "file" / "build")]) == NOTHING_WRITTEN
    assert f"handouts: cannot write in {tmp_path / 'file' / 'build'}: " in capsys.readouterr().err


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(press, "find_spec", lambda name: None)
    assert main(["--out", str(tmp_path / "build")]) == NOTHING_WRITTEN
    assert 'pypandoc and typst not found; install the extra: pip install -e ".[handouts]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.pdf")] == ["learner/00_start.pdf"]
    assert (tmp_path / "learner" / "00_start.pdf").read_bytes() == b"of yesterday"
    assert [path.name for path in tmp_path.iterdir()] == ["learner"]
    assert re.search("interrupted|No space left", capsys.readouterr().err)


def test_options_choose_what_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(press, "pdf", lambda *arguments, **_: arguments[4].encode())
    options = ["--edition", "learner", "plans", "--notebooks", "02_zeroing", "00_start", "--paper", "Letter"]
    assert main([*options, "--out", str(tmp_path)]) == WRITTEN
    assert {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.pdf")} == {
        "learner/02_zeroing.pdf": b"letter", "learner/00_start.pdf": b"letter", "plans.pdf": b"letter",
    }  # fmt: skip


def test_links_lead_to_the_handouts_that_are_built_too_and_to_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(press, "pdf", lambda text, *_, **__: text.encode())
    start, _ = build(tmp_path, ("learner",), names=("00_start", "02_zeroing"))
    text = start.read_text(encoding="utf-8")
    assert "[02_zeroing](02_zeroing.pdf)" in text
    assert "*09_capstone*" in text
    assert set(re.findall(r"\]\((\w+\.(?:pdf|ipynb))", text)) == {"00_start.pdf", "02_zeroing.pdf"}


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
