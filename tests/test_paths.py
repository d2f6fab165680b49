"""The 90-minute path runs as printed: set-up and named sections of each notebook, without proofs.

The longer paths are whole notebooks, which nbval runs.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from nbformat import NotebookNode

from cells import run
from course import NOTEBOOKS
from notebooks import PROJECT, displays, reading, section_of, tags

SHORT = [name for name, book in NOTEBOOKS.items() if book.short]
DAY = [name for name, book in NOTEBOOKS.items() if book.numbered]
each_path = pytest.mark.parametrize("path", [SHORT, DAY], ids=["90 minutes", "day"])


@pytest.mark.parametrize("name", SHORT)
def test_the_sections_of_the_90_minutes_run_without_the_others(name, as_in_a_kernel):
    names = {"__name__": "__main__"}
    for _, cell, _ in pieces(name, SHORT):
        if cell.cell_type == "code" and "proof" not in tags(cell):  # proofs may be skipped
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


def pieces(name: str, path: list[str]) -> Iterator[tuple[str, NotebookNode, str]]:
    """What is on a path in a notebook: a section ("" is the set-up cell's), a cell of it, and the prose there."""
    book, section = NOTEBOOKS[name], ""
    for cell in book.cells[1:]:
        texts = ["\n".join(str(value) for each in displays(cell) for value in each.values())]
        for text in texts if cell.cell_type == "code" else re.split(r"^(?=## )", cell.source, flags=re.M):
            if heading := re.match(r"## (.+)", text):
                section = section_of(heading[1])
            if path is DAY or not section or section in book.short:
                yield section, cell, re.sub(r"```.*?```|^\*\*Next:.*?$", "", text, flags=re.M | re.S)


@each_path
def test_a_path_defines_a_term_before_it_uses_it(path):
    """The glossary is the tags `defines:TERM`; each names a cell that defines its term."""
    cells = [(name, *piece) for name in path for piece in pieces(name, path)]
    for tag in sorted({tag for book in NOTEBOOKS.values() for cell in book.cells for tag in tags(cell)}):
        _, is_term, term = tag.partition("defines:")
        stem = term.removesuffix("e")  # clip: "clips", "clipping"
        forms = rf"(?<![\w-]){stem}(?:e|{stem[-1:]})?(?:s|d|ed|ing)?(?![\w-])"
        defined = next(((name, section) for name, section, cell, _ in cells if tag in tags(cell)), None)
        for name, section, _, text in cells if is_term else ():
            if (name, section) == defined:
                break
            used = re.search(f".*{forms}.*", re.sub("`[^`]*`", "", text), flags=re.I)
            assert not used, f"{name}, {section}: {term!r} isn't defined yet: {used[0]}"


@each_path
def test_a_path_defines_a_function_that_it_uses(path):
    for name in path:
        nodes = {cell.id: [*ast.walk(ast.parse(cell.source))] for cell in NOTEBOOKS[name].code}
        functions = {node.name for tree in nodes.values() for node in tree if isinstance(node, ast.FunctionDef)}
        known, prose = set(), set()
        for section, cell, text in pieces(name, path):
            tree = nodes.get(cell.id, [])
            known |= {node.arg if isinstance(node, ast.arg) else getattr(node, "name", "") for node in tree}
            known |= {node.id for node in tree if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            unknown = functions & {getattr(node, "id", "") for node in tree} - known
            assert not unknown, f"{name}, {section}: {unknown} in {cell.source}"
            prose |= functions & {*re.findall(r"`(\w+)(?:`|\(\w)", text)}
        assert prose <= known, f"{name}: the prose names {prose - known}"
