"""The 90-minute path runs as printed: set-up and named sections of each notebook, without proofs.

The longer paths are whole notebooks, which nbval runs.
"""

import re

import pytest

from cells import run
from course import NOTEBOOKS
from notebooks import PROJECT, reading, section_of, tags

SHORT = [name for name, book in NOTEBOOKS.items() if book.short]


@pytest.mark.parametrize("name", SHORT)
def test_the_sections_of_the_90_minutes_run_without_the_others(name, as_in_a_kernel):
    book = NOTEBOOKS[name]
    sections, section, names = book.short, "", {"__name__": "__main__"}
    for cell in book.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^## (.+)$", cell.source, flags=re.M)
            section = section_of(headings[-1]) if headings else section
        elif "proof" not in tags(cell) and (not section or section in sections):  # proofs may be skipped
            run(cell.source, names)


def test_the_90_minutes_have_amp_pitfalls_and_three_exercises():
    exercises = [name for name in SHORT if "Your turn" in NOTEBOOKS[name].short]
    assert len(exercises) >= 3
    assert {"09_amp", "11_pitfalls"} <= set(SHORT)


def test_the_sections_that_a_path_names_are_there():
    for name in SHORT:
        assert set(NOTEBOOKS[name].short) <= set(NOTEBOOKS[name].sections), name


def test_a_path_takes_no_longer_than_its_name_says():
    day = [book for book in NOTEBOOKS.values() if book.numbered and book.name != PROJECT]
    assert 0 < sum(reading(NOTEBOOKS[name], NOTEBOOKS[name].short).minutes for name in SHORT) <= 90
    assert 0 < sum(book.minutes for book in day) <= 370
