"""Workshop plans for the two shorter paths, to the minute: 90 minutes, and a day."""

from math import ceil

from editions import div, table
from notebooks import PROJECT, ROOT, Notebook, reading

START = 9 * 60  # minutes after midnight
PAUSES = {"02_zeroing": ("Break", 15), "06_tokens": ("Lunch", 60), "08_training_loop": ("Break", 15)}  # of the day
AIMS = {
    "90 minutes": "For people who train with PyTorch. At the end everybody has written a window that equals the large "
    "batch, has put the calls of mixed precision in order, and has found two bugs in one loop.",
    "A day": "For people who train with PyTorch and have never looked at `.grad`. At the end everybody has a training "
    "loop of their own that accumulates any data exactly, and a test for it.",
}

Stop = tuple[Notebook, list[str]]  # a notebook, and the sections of it that are read


def markdown(books: dict[str, Notebook]) -> str:
    """Both plans, on one page, with what to do the day before."""
    plans = [plan(path, stops(path, books)) for path in AIMS]
    before_and_in_the_room = (ROOT / "docs" / "paper" / "plans.md").read_text(encoding="utf-8")
    return "\n\n".join(["# Workshop plans", *plans, before_and_in_the_room])


def stops(path: str, books: dict[str, Notebook]) -> list[Stop]:
    """What is read on a path."""
    if path == "90 minutes":
        return [(book, book.short) for book in books.values() if book.short]
    return [(book, book.sections) for book in books.values() if book.numbered and book.name != PROJECT]


def timetable(path: str, visited: list[Stop]) -> list[tuple[int, int, str]]:
    """When each notebook or break of a path begins and ends, in minutes after midnight."""
    found, clock = [], float(START)
    for book, sections in visited:
        whole = sections == book.sections
        visits = [(f"**{book.label} {book.title.split(':')[0]}**", book.minutes)]
        if not whole:
            visits = [(f"{visits[0][0]}: {', '.join(sections)}", reading(book, sections).minutes)]
        if path != "90 minutes" and book.name in PAUSES:
            what, minutes = PAUSES[book.name]
            visits.append((f"*{what}*", minutes))
        for what, minutes in visits:
            found.append((ceil(clock), ceil(clock + minutes), what))
            clock += minutes
    return found


def plan(path: str, visited: list[Stop]) -> str:
    return div("plan", *parts(path, visited))


def parts(path: str, visited: list[Stop]) -> list[str]:
    """A plan's heading, what it is for, and its table."""
    rows = timetable(path, visited)
    exercises = sum(reading(book, sections).exercises for book, sections in visited)
    share = exercises / (rows[-1][1] - START)
    table_ = table([["from", "to", "min", "what"]])
    for begin, end, what in rows:
        table_ += f"\n| {_time(begin)} | {_time(end)} | {end - begin} | {what} |"
    return [
        f"## {path}: {_time(START)} to {_time(rows[-1][1])}",
        f"{AIMS[path]} Exercises take {share:.0%} of the time.",
        table_,
    ]


def _time(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"
