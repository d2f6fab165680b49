"""Every notebook in a real JupyterLab: it runs, it answers, and it fits the page."""

import re
from pathlib import Path

import pytest

from course_utils.ask import FOLDED, MEASURED
from course_utils.ask.display import COURSE
from course_utils.ask.predictions import recorded

FOLDER = Path(__file__).parents[2] / "notebooks"
FOUND = [*sorted(FOLDER.glob("*.ipynb")), *sorted(FOLDER.glob("deeper/*.ipynb"))]
NOTEBOOKS = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOUND]
REPR = re.compile(r"Box\(children|HTML\(value|Error displaying widget|model not found|Loading widget")
RIGHT, WRONG = "rgb(0, 158, 115)", "rgb(213, 94, 0)"  # of the border of a verdict


def source(cell) -> str:
    return "".join(cell["source"])


def tags(cell) -> list[str]:
    return cell["metadata"].get("tags", [])


def cell_numbers(cells, pattern: str) -> list[int]:
    """The numbers of the code cells in which a pattern is found."""
    return [i for i, cell in enumerate(cells) if cell["cell_type"] == "code" and re.search(pattern, source(cell), re.M)]


def assert_no_error(cells) -> None:
    for number, cell in enumerate(cells):
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error", f"cell {number}: {output['ename']}: {output['evalue']}"
            assert output.get("name") != "stderr", f"cell {number} wrote to stderr: {output['text']}"


def assert_it_fits(lab) -> None:
    assert lab.ask("overflowing") == []
    assert lab.ask("scrolling") == []
    assert lab.ask("broken") == 0
    for number, text in enumerate(lab.ask("text")):
        assert not REPR.search(text), f"cell {number} shows a widget's text: {REPR.search(text)}"


def assert_no_line_is_cut(lab) -> None:
    wide = lab.page.viewport_size
    for width in (960, 1280):
        lab.page.set_viewport_size({**wide, "width": width})
        lab.settle()
        assert lab.ask("cut") == [], f"at {width} pixels"
    lab.page.set_viewport_size(wide)


def verdict(lab, number: int) -> tuple[str, str]:
    """The border's colour and the text of the verdict that a cell shows."""
    box = lab.cell(number).locator(".jp-OutputArea-output div[style*='border-left']").last
    return box.evaluate("e => getComputedStyle(e).borderLeftColor"), box.inner_text()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_answers_and_fits(lab, name):
    lab.open(name)
    assert_it_fits(lab)  # as committed: in a copy that nobody has run
    assert_no_line_is_cut(lab)
    for number in cell_numbers(lab.cells(), r"\.reveal\("):
        if source(lab.cells()[number]).startswith("# Answer\n"):
            fold = lab.cell(number).locator("details")
            assert (fold.locator("summary").inner_text(), fold.evaluate("e => e.open")) == (MEASURED, False)
        else:
            assert lab.cell(number).locator(".jp-OutputPlaceholder").inner_text() == FOLDED
    lab.run_all()
    cells = lab.cells()
    assert_no_error(cells)
    assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
    assert_it_fits(lab)
    predictions_respond(lab, cells)
    cards_respond(lab, cells)
    exercises_respond(lab, cells)
    assert_it_fits(lab)
    assert lab.errors == []


def predictions_respond(lab, cells) -> None:
    """From the top again: each question's first option can be chosen, and is compared."""
    asking, revealing = cell_numbers(cells, r"= predict\(|: predict\("), cell_numbers(cells, r"\.reveal\(")
    assert len(asking) == len(revealing)  # none where a table on top tells all
    for number in [number for number in cell_numbers(cells, "") if number <= max(revealing, default=-1)]:
        lab.run_cell(number)
        for group in lab.cell(number).locator(".widget-radio-box").all() if number in asking else ():
            group.locator("input").first.check()
            assert group.locator("input").first.is_checked()
            assert not group.locator("input").last.is_checked()
        if number == asking[0]:
            lab.run_cell(number)  # a click selects the question's cell, and the next Shift+Enter runs it again
            assert lab.cell(number).locator(".widget-radio-box input").first.is_checked()
        for output in outputs(lab, number) if number in revealing else ():
            data = output.get("data", {})
            if COURSE in data:
                assert "You predicted" in data["text/plain"]
                assert data.get("text/markdown", "<details open").startswith("<details open")
            if re.search("You predicted .+; (measured|recorded): ", data.get("text/plain", "")):
                assert f" {recorded()[data[COURSE]['question']]['why']}" in data["text/plain"]
    assert_no_error(lab.cells())
    assert "So far here: " in line(lab, cells) or not has_cards(cells)


def cards_respond(lab, cells) -> None:
    """A card unfolds, and one that was known is counted."""
    for number in cell_numbers(cells, r"^(# Recall\n)?recall\("):
        cell = lab.cell(number)
        card = cell.locator("details").first
        assert not card.evaluate("e => e.open")
        card.locator("summary").press("Enter")
        assert card.evaluate("e => e.open")
        cell.locator("input[type=checkbox]").first.check()
        lab.settle()
        assert re.search(r" 1 of \d+ cards known", line(lab, cells))


def exercises_respond(lab, cells) -> None:
    """Each exercise names a wrong answer's bug, and turns green with the notebook's solution."""
    for number in cell_numbers(cells, r"^_ = check\("):
        solution = next(cell for cell in cells[number:] if "solution" in tags(cell))
        stub = re.search(r'^_ = check\("(\w+)", (\w+).*\)$', source(cells[number]), flags=re.M)
        call, exercise, name = stub.group(0, 1, 2)
        is_function = f"def {name}(" in source(cells[number])
        raises = f'def {name}(*_):\n    raise KeyError("lost")\n\n{call}'
        lab.run_cell(number, raises if is_function else f'_ = check("{exercise}", [object()])')
        color, text = verdict(lab, number)
        assert color == WRONG, text
        assert re.match(r"Not yet right \([\w-]+\)\. ", text)
        assert ("KeyError: 'lost'" in text) == is_function
        passed = passed_exercises(lab, cells)
        answer, _, scored = source(solution).removeprefix("# Solution\n").partition("\nassert ")
        lab.run_cell(number, f"{answer}\n_ = {scored.replace(', scored=False).passed', ')')}")
        color, text = verdict(lab, number)
        assert color == RIGHT, text
        assert text.startswith(("Right. ", "Done. "))  # of the reader's own script nobody knows what is right
        assert passed_exercises(lab, cells) == passed + has_cards(cells)


def has_cards(cells) -> bool:
    """Whether the notebook ends in cards, and the line of progress below them."""
    return bool(cell_numbers(cells, r"^(# Recall\n)?recall\("))


def passed_exercises(lab, cells) -> int:
    return int(re.search(r"(\d+) of \d+ exercises passed", line(lab, cells))[1]) if has_cards(cells) else 0


def outputs(lab, number: int) -> list[dict]:
    return lab.cells()[number].get("outputs", [])


def line(lab, cells) -> str:
    """The progress line; empty where there are no cards."""
    numbers = cell_numbers(cells, r"^(# Recall\n)?(recall|progress)\(")
    if not numbers:
        return ""
    return lab.cell(numbers[0]).locator(".jp-OutputArea-output").last.inner_text()
