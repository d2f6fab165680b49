"""The 90-minute path runs as it is printed: the set-up cell and the named sections of each notebook, without
proofs.

The longer paths are whole notebooks, which nbval runs.
"""

import re

import pytest
from cells import run
from course import NOTEBOOKS

from course_utils.publish.contents import path_minutes
from course_utils.publish.notebook import PATHS, section_of, tags

SHORT = [name for name, book in NOTEBOOKS.items() if book.on_path("90 minutes")]


@pytest.mark.parametrize("name", SHORT)
def test_the_sections_of_the_90_minutes_run_without_the_others(name, as_in_a_kernel):
    book = NOTEBOOKS[name]
    sections, section, names = book.on_path("90 minutes"), "", {"__name__": "__main__"}
    for cell in book.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^## (.+)$", cell.source, flags=re.M)
            section = section_of(headings[-1]) if headings else section
        elif "proof" not in tags(cell) and (not section or section in sections):  # proofs may be skipped
            run(cell.source, names)


@pytest.mark.parametrize(("path", "most"), [("90 minutes", 90), ("one day", 370)])
def test_a_path_takes_no_longer_than_its_name_says(path, most):
    assert path in PATHS
    assert 0 < path_minutes(NOTEBOOKS, path) <= most
