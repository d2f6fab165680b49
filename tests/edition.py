"""How long a notebook takes and how it reads: `python tests/edition.py notebooks/02_zeroing.ipynb` prints its figures.

The limits are those of CONTRIBUTING.md; the reading speeds stand in course_utils/publish/reading.py.
"""

import re
import sys
from pathlib import Path

from course_utils.publish.notebook import PATHS, Notebook
from course_utils.publish.reading import reading

SECOND_EDITION = (
    "00_start",
    "01_gradients",
    "02_zeroing",
    "02b_forgetting",
    "02c_none_or_zeros",
    "03_accumulation",
    "03b_windows",
    "03c_memory_and_time",
    "03d_tokens",
    "04_exactness",
    "04b_rewards_and_packing",
    "05_precision",
    "05b_loss_scaling",
    "06_training_loop",
    "06b_hooks",
    "06c_noise_scale",
    "06d_checkpoints",
    "07_distributed",
    "07b_shards_and_pipelines",
    "07c_frameworks",
    "08_pitfalls",
    "09_capstone",
    "09c_memory",
    "09b_should_you_accumulate",
)  # these keep the limits
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


def limits(notebook: Notebook) -> dict[str, tuple[float, float]]:
    """What has a limit, and the limit."""
    found = reading(notebook)
    return {
        "words": (found.words, MOST_WORDS),
        "lines of code": (found.lines, MOST_LINES),
        "honest minutes": (round(found.minutes, 1), MOST_MINUTES),
    }


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
        figures = ", ".join(f"{figure:g} of {most} {what}" for what, (figure, most) in limits(book).items())
        print(f"{book.name}: {figures}; stated {book.minutes}, exercises {reading(book).exercises}")
        if sections := book.paths.get(PATHS[0]):
            print(f"  {reading(book, sections).minutes:.1f} minutes in the path of {PATHS[0]}: {', '.join(sections)}")
        for line in wide_lines(book):
            print(f"  over {MOST_COLUMNS} columns: {line.strip()[:70]}")
        for word in left_out(shown(book)):
            print("  word:", word)
