"""The shape of the notebooks: executed, clean, folded where they should be, every fact shown by a cell of its own."""

import ast
import csv
import re
from pathlib import Path

import nbformat
import pytest
from execute import WIDGET

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
LESSONS = {name: notebook for name, notebook in NOTEBOOKS.items() if name != "00_start"}
HEADINGS = ["Why", "Predict", "Step 1", "See it", "Myth", "Your turn", "Metrics to watch", "Recall", "Takeaways"]
LEDGER = {"A": 86, "B": 83, "C": 25, "D": 25, "G": 33, "X": 18}  # how many claims each common source makes

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=NOTEBOOKS)
each_lesson = pytest.mark.parametrize("notebook", LESSONS.values(), ids=LESSONS)


def claims() -> list[dict[str, str]]:
    with (ROOT / "data" / "claims.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def prose(notebook) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def for_learners(notebook) -> list:
    return [cell for cell in notebook.cells if "instructor" not in tags(cell)]


def counted(notebook) -> list:
    """The cells that make a notebook long: not those for the instructor, nor those that hold exercises alone."""
    found, section = [], ""
    for cell in for_learners(notebook):
        prose_of = cell.source if cell.cell_type == "markdown" else ""
        sections = re.findall(r"^## (.*?)(?: · .*)?$", prose_of, flags=re.M) or [section]
        section = sections[-1]
        if set(sections) != {"Your turn"}:
            found.append(cell)
    return found


def folded(cell, part: str) -> bool:
    return cell.metadata.get("jupyter", {}).get(f"{part}_hidden", False)


def text_of(cell) -> str:
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text", ""))
        parts += [content for kind, content in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)


@each_notebook
def test_every_code_cell_was_executed_in_order(notebook):
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))


@each_notebook
def test_cells_that_say_something_have_their_outputs(notebook):
    for cell in code(notebook):
        if re.search(
            r"^\s*(print|show|recall|progress|explore|check)\(|= predict\(|\.reveal\(", cell.source, flags=re.M
        ):
            assert cell.outputs, f"no output is stored for: {cell.source[:80]}"
        assert not any(output.output_type == "error" for output in cell.outputs)


@each_notebook
def test_nothing_is_stored_that_differs_from_run_to_run(notebook):
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags", "jupyter"}
        for output in cell.get("outputs", []):
            assert WIDGET not in output.get("data", {})
            assert output.get("name") != "stderr", "a notebook must not write to stderr: nbval compares it"
        if cell.cell_type == "code":
            found = re.search(
                r"0x[0-9a-f]{6,}|[A-Z]:\\|/(home|root|tmp|usr|work|content)/|Box\(|<Figure", text_of(cell)
            )
            assert not found, f"{found} in the output of: {cell.source[:80]}"


def test_the_set_up_cell_is_the_same_everywhere():
    assert len({code(notebook)[0].source for notebook in NOTEBOOKS.values()}) == 1


@each_lesson
def test_the_headings_are_those_of_the_template(notebook):
    found = re.findall(r"^## (.*?)(?: · .*)?$", prose(notebook), flags=re.M)
    steps = [heading for heading in found if heading.startswith("Step ")]
    assert steps == [f"Step {number + 1}" for number in range(len(steps))]
    assert [heading for heading in found if heading not in steps[1:]] == HEADINGS


@each_lesson
def test_the_title_cell_gives_time_prerequisites_and_aims(notebook):
    title = notebook.cells[0].source
    assert re.match(r"# .+\n\n\*\*\d\d minutes · after \[", title)
    assert "After this notebook you can" in title


@each_lesson
def test_it_has_a_readable_length(notebook):
    assert 20 <= len(counted(notebook)) <= 40
    for cell in code(notebook):
        longest = max(map(len, cell.source.splitlines()), default=0)
        assert longest <= 120 or folded(cell, "source"), f"a line of {longest} characters: {cell.source[:80]}"


@each_notebook
def test_what_gives_an_answer_away_is_folded(notebook):
    for cell in code(notebook):
        if ".reveal(" in cell.source:
            assert folded(cell, "outputs"), f"the reveal shows: {cell.source[:80]}"
        if "solution" in tags(cell):
            for part in ("source", "outputs"):
                assert folded(cell, part), f"the solution's {part} show: {cell.source[:80]}"
        if cell.source.startswith("recall("):
            assert folded(cell, "source"), "the answers of the cards show"


@each_notebook
def test_it_ends_with_a_line_of_progress_where_nothing_is_answered_yet(notebook):
    lines = [text_of(cell) for cell in code(notebook) if re.search(r"^(recall|progress)\(", cell.source, flags=re.M)]
    assert len(lines) == 1
    asked = sum(cell.source.count("predict(") for cell in code(notebook))
    assert f"Nothing answered yet here. Waiting for you: {asked} prediction" in lines[0]


@each_notebook
def test_every_prediction_is_revealed_in_a_later_cell(notebook):
    sources = [cell.source for cell in code(notebook)]
    for place, source in enumerate(sources):
        for name in re.findall(r"^(\w+) = predict\(", source, flags=re.M):
            assert any(f"{name}.reveal(" in later for later in sources[place + 1 :]), name
            assert f"{name}.reveal(" not in source


@each_notebook
def test_every_exercise_has_a_stub_hints_and_a_checked_solution(notebook):
    checks = [cell for cell in code(notebook) if re.search(r"\bcheck\(", cell.source)]
    assert checks
    solved = {True: [], False: []}
    for cell in checks:
        (exercise,) = re.findall(r'check\("(\w+)"', cell.source)
        is_solution = "solution" in tags(cell)
        solved[is_solution].append(exercise)
        assert is_solution == bool(re.search(r"assert check\(.*, scored=False\)", cell.source))
        if "find-the-bug" not in tags(cell):
            expected = "Right." if is_solution else "Not done yet."
            assert expected in text_of(cell), f"the check says: {text_of(cell)}"
    assert solved[True] == solved[False], "every stub is followed by its solution"
    assert "\n".join(cell.source for cell in for_learners(notebook)).count("<details><summary>") >= 2


def imports(cells: list) -> str:
    """What the code cells among these import."""
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    return "\n".join(ast.unparse(line) for tree in trees for line in tree.body if isinstance(line, IMPORTS))


IMPORTS = (ast.Import, ast.ImportFrom)
NO_BUGS = {"not-attempted", "not-a-function", "wrong-type", "raises"}  # an empty stub, or one that only crashes
HUNTS = [name for name, notebook in LESSONS.items() if any("find-the-bug" in tags(cell) for cell in code(notebook))]


@pytest.mark.parametrize("name", HUNTS)
def test_a_loop_with_a_bug_to_find_has_one_and_its_mend_is_small(name):
    cells = NOTEBOOKS[name].cells
    for place, cell in enumerate(cells):
        if "find-the-bug" not in tags(cell):
            continue
        before, mend = cells[place - 1], cells[place + 1]
        assert re.match(r"\*\*Find the bug, \d+ minutes, at home if time is short\.\*\* ", before.source)
        assert "solution" in tags(mend)
        assert folded(cell, "outputs"), "the verdict names the bug"
        assert not folded(cell, "source")

        names: dict = {}
        exec(code(NOTEBOOKS[name])[0].source, names)
        exec(imports(cells[:place]), names)
        exec(cell.source, names)  # needs nothing else from the cells before
        verdict = names["_"]
        assert not verdict.passed
        assert verdict.bug not in NO_BUGS, verdict.message
        assert not verdict.bug.startswith("crashes")
        assert f"Not yet right ({verdict.bug})." in text_of(cell)
        assert "find_the_bug=True" in cell.source, "it counts once it is mended"

        exec(mend.source, names)
        assert "Right." in text_of(mend)
        assert mend.source.count("# mended: ") == 1
        loop, mended = (found.source.rpartition("\n\n\n")[0].splitlines() for found in (cell, mend))
        kept = {line.strip() for line in loop} & {line.strip() for line in mended}
        changed = [line for line in loop + mended if line.strip() and line.strip() not in kept]
        assert 1 <= len(changed) <= 8, changed


@each_notebook
def test_the_instructor_has_one_folded_cell_whose_minutes_add_up_to_those_of_the_title(notebook):
    (cell,) = [cell for cell in notebook.cells if "instructor" in tags(cell)]
    assert cell.cell_type == "markdown"
    assert cell.source.startswith("<details><summary>For the instructor")
    assert cell.source.endswith("</details>")
    minutes = {names: int(number) for names, number in re.findall(r"^\| ([^|]+) \| (\d+) \|$", cell.source, flags=re.M)}
    headings = re.findall(r"^## (.*?)(?: · .*)?$", prose(notebook), flags=re.M)
    assert [heading for names in minutes for heading in names.split(", ")] == headings
    assert min(minutes.values()) >= 1
    assert sum(minutes.values()) == int(re.search(r"\*\*(\d+) minutes", notebook.cells[0].source)[1])
    exercises = re.findall(r"^\*\*(?:\w+ exercise, )?(\d+) minutes\.\*\*", prose(notebook), flags=re.M)
    assert sum(map(int, exercises)) == minutes.get("Your turn", 0)
    for what in ("**Ask**", "**Listen for**"):
        assert len(re.findall(r"^- ", cell.source.partition(what)[2].partition("\n\n**")[0], flags=re.M)) >= 2, what


@each_notebook
def test_only_live_output_is_left_uncompared(notebook):
    for cell in code(notebook):
        if "explore(" in cell.source:
            assert "nbval-ignore-output" in tags(cell)
        if "nbval-ignore-output" in tags(cell):
            assert not any(tag.startswith("claim:") for tag in tags(cell)), "a claim's output must be compared"


@each_notebook
def test_no_line_of_prose_is_taken_for_a_numbered_list(notebook):
    assert not re.findall(r"^\d+[.)] .*", prose(notebook), flags=re.M)


@each_notebook
def test_links_to_other_notebooks_lead_somewhere(notebook):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", prose(notebook)):
        assert (ROOT / "notebooks" / target).is_file(), target


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_fact_has_a_code_cell_with_an_assertion_of_its_own(name):
    facts = {row["id"] for row in claims() if row["notebook"] == name}
    shown = set()
    for cell in NOTEBOOKS[name].cells:
        tagged = {tag.removeprefix("claim:") for tag in tags(cell) if tag.startswith("claim:")}
        if tagged:
            assert cell.cell_type == "code"
            assert re.search(r"^\s*assert ", cell.source, flags=re.M), f"{tagged}: nothing is asserted"
            assert "pytest.raises" not in cell.source
        shown |= tagged
    assert shown == facts


def test_the_facts_cover_every_common_claim_once():
    rows = claims()
    assert list(rows[0]) == ["id", "statement", "belief", "verdict", "covers", "notebook", "falsifier"]
    assert all(row["id"] and row["statement"] and row["belief"] and row["falsifier"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["verdict"] for row in rows} <= {"true", "true-if", "imprecise", "wrong", "outdated", "missing"}
    covered = sorted(claim for row in rows for claim in row["covers"].split())
    assert covered == sorted(
        f"{source}-{number:02}" for source, many in LEDGER.items() for number in range(1, many + 1)
    )


def test_the_readme_lists_every_notebook_with_its_minutes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, notebook in NOTEBOOKS.items():
        minutes = re.search(r"\*\*(\d+) minutes", notebook.cells[0].source)[1]
        assert re.search(rf"\(notebooks/{name}\.ipynb\) \| .+ \| {minutes} \|", readme), name
        assert name == "00_start" or f"]({name}.ipynb) | " in prose(NOTEBOOKS["00_start"])


def test_the_readme_has_two_commands_that_do_all_the_set_up():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```\n(.*?)\n```$", readme, flags=re.M | re.S)
    assert commands == [
        'pip install -e ".[lab]" && jupyter lab notebooks/00_start.ipynb',
        'pip install -e ".[test]" && pytest --nbval',
    ]
