"""Workshop plans for the two shorter paths: 90 minutes, and one day.

A path's sections are those that the notebooks name; how long they take is computed.
"""

from collections.abc import Iterator
from math import ceil

from course_utils.publish.handouts.editions import verbatim
from course_utils.publish.handouts.press import TEMPLATES
from course_utils.publish.notebook import PATHS, Notebook
from course_utils.publish.reading import minutes_on, reading

TITLE, EDITION, TEMPLATE = "Workshop plans", "For the instructor", "handout"
START = 9 * 60  # minutes after midnight
PAUSES = {"02_zeroing": ("Break", 15), "04_accumulation": ("Lunch", 60), "07_exactness": ("Break", 15)}  # of a day
AIMS = {
    "90 minutes": "For people who train with PyTorch. At the end everybody has written a window that equals the large "
    "batch, has put the calls of mixed precision in order, and has found two bugs in one loop.",
    "one day": "For people who train with PyTorch and have never looked at `.grad`. At the end everybody has a "
    "training loop of their own that accumulates any data exactly, and a test for it.",
}


def markdown(notebooks: dict[str, Notebook]) -> str:
    """Both plans; `PublishError` if a path names a section that its notebook does not have."""
    day_before = (TEMPLATES / "plans.md").read_text(encoding="utf-8")
    plans = ["\n\n".join(_plan(path, notebooks)) for path in PATHS if path in AIMS]
    return "\n\n".join([f"# {TITLE}", day_before, *plans])


def timetable(path: str, notebooks: dict[str, Notebook]) -> list[tuple[int, int, str]]:
    """When each notebook, or break, of a path begins and ends, in minutes after midnight, and what it is."""
    found, clock = [], float(START)
    for name, notebook in notebooks.items():
        if not (minutes := minutes_on(notebook, path)):
            continue
        sections = notebook.on_path(path)
        what = "all of it" if sections == notebook.headings else ", ".join(sections)
        found.append((ceil(clock), ceil(clock + minutes), f"**{verbatim(name)}**: {what}"))
        clock += minutes
        if path == "one day" and name in PAUSES:
            pause, minutes = PAUSES[name]
            found.append((ceil(clock), ceil(clock + minutes), f"*{pause}*"))
            clock += minutes
    return found


def hands_on(path: str, notebooks: dict[str, Notebook]) -> float:
    """The share of a path in which people work on exercises; predictions are not counted."""
    on_it = [book for book in notebooks.values() if book.on_path(path)]
    exercises = sum(reading(book, book.on_path(path)).exercises for book in on_it)
    return exercises / sum(minutes_on(book, path) for book in on_it)


def _plan(path: str, notebooks: dict[str, Notebook]) -> Iterator[str]:
    rows = timetable(path, notebooks)
    hours, minutes = divmod(rows[-1][1] - START, 60)
    length = f"{hours} hour{'s' * (hours > 1)}" + (f" {minutes} minutes" if minutes else "")
    yield f"## {path[0].upper()}{path[1:]}: {length}"
    yield f"{AIMS[path]} Exercises: {hands_on(path, notebooks):.0%} of the time without breaks."
    table = [f"| {_time(begin)} | {_time(end)} | {end - begin} | {what} |" for begin, end, what in rows]
    yield "\n".join(["| from | to | min | what |", "| ---: | ---: | ---: | --- |", *table])
    yield "**If time runs short,** leave out the last step of a notebook; never its first exercise."


def _time(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"
