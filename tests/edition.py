"""How long a notebook takes and how it reads: `python tests/edition.py notebooks/02_zeroing.ipynb` prints its figures.

Reading speeds and limits are those of CONTRIBUTING.md: 180 words and 12 lines of code a minute.
"""

import re
import sys
from pathlib import Path

from course_utils.publish.notebook import Notebook, tags

WORDS_A_MINUTE, LINES_A_MINUTE = 180, 12
MOST_WORDS, MOST_LINES, MOST_COLUMNS, MOST_MINUTES = 2200, 240, 88, 45

_PASS = (
    r"\b(a|one|each|every|the|second|next) (forward|backward)\b"
    r"(?=[.,;:)]|\s(and|or|in|of|is|has|that|per|with|for|then)\b)"
)
# Words that the course leaves out, each with what it says instead.
LEFT_OUT = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bin place of\b": "instead of",
    r"\bwh(o|om)ever\b": "if you, anyone who",
    r"\bshall\b": "must, should",
    r"\bweigh(s|ed|ing)?\b": "weight, weighted",
    r"\ban advice\b": "advice, a hint",
    r"\bticks?\b|\bticked\b": "scheduler step",
    _PASS: "a forward pass, a backward pass",
    r"\banew\b": "again, a new one",
    r"\bdear(er|est)?\b": "expensive",
    r"\bseen to run\b": "tested on",
    r"\bat times\b": "it may, rarely",
    r"\bby itself\b": "on its own",
}


def words(notebook: Notebook) -> int:
    """The words of its prose: without the instructor's cell, addresses of links, tables' rules and fenced code."""
    text = "\n".join(cell.source for cell in notebook.for_learners if cell.cell_type == "markdown")
    text = re.sub(r"```.*?```|<!--.*?-->|<[^>]+>|\]\([^)]*\)", " ", text, flags=re.S)
    return len(re.findall(r"\S*\w\S*", text))


def lines(notebook: Notebook) -> int:
    """The lines of code that are not empty, without the solutions, which are folded."""
    code = (cell.source for cell in notebook.code if "solution" not in tags(cell))
    return sum(bool(line.strip()) for source in code for line in source.splitlines())


def exercise_minutes(notebook: Notebook) -> int:
    """The minutes of the exercises that belong to the notebook; those "at home" do not."""
    return sum(map(int, re.findall(r"^\*\*(?:\w+ exercise, )?(\d+) minutes\.\*\*", notebook.prose, flags=re.M)))


def honest_minutes(notebook: Notebook) -> float:
    """What reading, running and the exercises take."""
    return words(notebook) / WORDS_A_MINUTE + lines(notebook) / LINES_A_MINUTE + exercise_minutes(notebook)


def wide_lines(notebook: Notebook) -> list[str]:
    """The lines of code that a screen of 1,280 pixels cuts off."""
    return [line for cell in notebook.code for line in cell.source.splitlines() if len(line) > MOST_COLUMNS]


def left_out(text: str) -> list[str]:
    """The words in a text that the course leaves out, each with what it says instead."""
    return [
        f"{found[0]!r} -> {instead}" for word, instead in LEFT_OUT.items() for found in re.finditer(word, text, re.I)
    ]


def shown(notebook: Notebook) -> str:
    """All that a reader sees: prose, code and what the cells print and display as text."""
    outputs = [output for cell in notebook.code for output in cell.outputs]
    texts = [output.get("text", output.get("data", {}).get("text/plain", "")) for output in outputs]
    return "\n".join([*(cell.source for cell in notebook.cells), *texts])


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        book = Notebook(path)
        print(
            f"{book.name}: {words(book)} words of {MOST_WORDS}, {lines(book)} lines of {MOST_LINES}, "
            f"exercises {exercise_minutes(book)} min; {honest_minutes(book):.0f} honest minutes, stated {book.minutes}"
        )
        for line in wide_lines(book):
            print(f"  over {MOST_COLUMNS} columns: {line.strip()[:70]}")
        for word in left_out(shown(book)):
            print("  word:", word)
