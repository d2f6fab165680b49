"""The measure of how long a notebook takes: what counts, and where."""

import nbformat
import pytest
from course_utils.publish.notebook import Notebook
from course_utils.publish.reading import Reading, reading
from nbformat import v4

PROSE = "## Why · it matters\n\nFour words [stand here](https://example.org/one/two).\n\n## Step 1\n\n```\nno = 1\n```"
TABLE = "| a | b |\n| --- | --- |\n| 1 | <b>2</b> |\n\n<!-- nothing -->"
EXERCISES = "## Your turn\n\n**5 minutes.** Do it.\n\n**At home, 10 minutes.** Do more."


@pytest.fixture
def book(tmp_path):
    cells = [
        v4.new_markdown_cell("# Title\n\n**35 minutes**\n\n*Why?*"),
        v4.new_code_cell("import torch\n\ntorch.manual_seed(0)"),
        v4.new_markdown_cell(PROSE),
        v4.new_code_cell("a = 1\n\nb = 2\n"),
        v4.new_markdown_cell(TABLE),
        v4.new_markdown_cell(EXERCISES),
        v4.new_code_cell("..."),
        v4.new_code_cell("# Solution\na = 3", metadata={"jupyter": {"source_hidden": True}}),
        v4.new_markdown_cell("## Takeaways\n\nOne."),
    ]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "x.ipynb")
    return Notebook(tmp_path / "x.ipynb")


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (["Why"], Reading(words=7, lines=0, exercises=0)),
        (["Step 1"], Reading(words=6, lines=2, exercises=0)),
        (["Your turn"], Reading(words=12, lines=1, exercises=5)),
        (["Why", "Your turn"], Reading(words=19, lines=1, exercises=5)),
        (["None such"], Reading(words=0, lines=0, exercises=0)),
        ([], Reading(words=31, lines=5, exercises=5)),
    ],
)
def test_words_lines_and_exercises_are_counted_in_the_sections_that_are_named(book, sections, expected):
    assert reading(book, sections) == expected


def test_a_minute_is_180_words_12_lines_or_a_minute_of_an_exercise():
    assert Reading(words=360, lines=36, exercises=5).minutes == 2 + 3 + 5
