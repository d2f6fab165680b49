"""Workshop plans: 90 minutes, half a day and a full day, from the minutes that sections and exercises take.

A plan says what is shown and what people do themselves; how long it takes is computed. A session ends on the next five
minutes, and what that leaves is slack.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from course_utils.publish import PublishError
from course_utils.publish.handouts.editions import div, verbatim
from course_utils.publish.handouts.press import TEMPLATES
from course_utils.publish.notebook import Notebook, section_of

TITLE, EDITION, TEMPLATE = "Workshop plans", "For the instructor", "handout"
START = 9 * 60  # minutes after midnight
OPEN = 1  # minutes to open a notebook and to run its set-up cell, while the kernel imports torch
ROUND = 5


@dataclass(frozen=True)
class Session:
    """A notebook: what is shown of it, and which of its exercises people do; the rest is read at home."""

    notebook: str
    goal: str  # at the end of the session
    shown: tuple[str, ...]  # sections
    exercises: int = 1  # how many of its exercises, from the first on


@dataclass(frozen=True)
class Pause:
    what: str
    minutes: int
    hands_on: bool = False


@dataclass(frozen=True)
class Plan:
    title: str
    aim: str
    items: tuple[Session | Pause, ...]


def _shown(*steps: int, end: bool = False) -> tuple[str, ...]:
    """A beginning, some steps, and perhaps the end."""
    return ("Why, Predict", *(f"Step {step}" for step in steps), *(["Metrics to watch, Recall, Takeaways"] * end))


_START = Session("00_start", "everybody's machine runs the course, and one missing line has been felt",
                 ("Set-up", "One missing line"), 2)  # fmt: skip
_SCRIPT = Pause("Audit a script of your own, or one of the public loops in `tests/public_loops`", 25, hands_on=True)

PLANS = (
    Plan(
        "90 minutes",
        "For people who train with PyTorch. At the end everybody knows what `.grad` holds at each step of a loop, and "
        "has seen an audit.",
        (
            _START,
            Session("01_gradients", "say why PyTorch adds gradients", _shown(5, 6)),
            Session("02_zeroing", "say where zeroing belongs, and why", _shown(1, 6), 2),
            Session("04_accumulation", "write a window that equals the large batch", _shown(1, 2, 3)),
            Pause("Audit a public loop (`gradaudit`), and what to read at home", 10, hands_on=True),
        ),
    ),
    Plan(
        "Half a day",
        "For people who train with PyTorch and have never looked at `.grad`. At the end everybody has written a loop "
        "that accumulates any data exactly.",
        (
            Pause("Arrival, who is here", 10),
            _START,
            Session("01_gradients", "say why PyTorch adds gradients", _shown(4, 5, 6), 2),
            Session("02_zeroing", "say where zeroing belongs, and why", _shown(1, 3, 6), 2),
            Pause("Break", 15),
            Session("04_accumulation", "write a window that equals the large batch", _shown(1, 2, 3, 7), 2),
            Session("05_windows", "handle tails and micro-batches of unequal sizes", _shown(2, 5, 6, end=True), 2),
            Pause("Break", 10),
            Session("11_pitfalls", "tell a buggy loop without its curve", _shown(1, 3)),
            _SCRIPT,
            Pause("Questions; what to read at home", 10),
        ),
    ),
    Plan(
        "A full day",
        "As above, and from there to tokens, exactness and precision. At the end everybody has audited a script, if "
        "possible one of their own.",
        (
            Pause("Arrival, who is here", 10),
            _START,
            Session("01_gradients", "say why PyTorch adds gradients", _shown(3, 4, 5, 6), 2),
            Session("02_zeroing", "say where zeroing belongs, and why", _shown(1, 3, 5, 6), 2),
            Pause("Break", 15),
            Session("03_forgetting", "name a forgotten zero_grad() by its effect", _shown(3, 4), 2),
            Session("04_accumulation", "write a window that equals the large batch", _shown(1, 2, 3, 7), 2),
            Pause("Lunch", 60),
            Session("05_windows", "handle tails and micro-batches of unequal sizes", _shown(2, 3, 5, 6), 2),
            Session("06_tokens", "take the mean over tokens", _shown(1, 2, 3), 2),
            Pause("Break", 15),
            Session("07_exactness", "say which of your models accumulate exactly", _shown(1, 2)),
            Session("low_precision", "find updates that get lost in 16 bits", _shown(2, 3, 4), 2),
            Pause("Break", 10),
            Session("11_pitfalls", "tell a buggy loop without its curve", _shown(1, 3, 5, 7, end=True)),
            _SCRIPT,
            Pause("Questions; what to read at home", 10),
        ),
    ),
)


def markdown(notebooks: dict[str, Notebook]) -> str:
    """All plans; `PublishError` if one shows a section or an exercise that its notebook does not have."""
    day_before = (TEMPLATES / "plans.md").read_text(encoding="utf-8")
    first, *others = [list(_plan(plan, notebooks)) for plan in PLANS]
    return "\n\n".join([f"# {TITLE}", day_before, *first, *(div("plan", *plan) for plan in others)])


def minutes_of(item: Session | Pause, notebooks: dict[str, Notebook]) -> int:
    """How long a session or a pause takes, its slack included."""
    return item.minutes if isinstance(item, Pause) else sum(minutes for _, minutes, _ in parts(item, notebooks))


def hands_on(plan: Plan, notebooks: dict[str, Notebook]) -> float:
    """The share of the time without breaks in which people work themselves: predictions are not counted."""
    working, total = 0, 0
    for item in plan.items:
        if isinstance(item, Session):
            for _, minutes, own in parts(item, notebooks):
                working, total = working + minutes * own, total + minutes
        elif item.what not in ("Break", "Lunch"):
            working, total = working + item.minutes * item.hands_on, total + item.minutes
    return working / total


def parts(session: Session, notebooks: dict[str, Notebook]) -> list[tuple[str, int, bool]]:
    """What happens in a session: what it is, its minutes, and whether people work themselves."""
    notebook = notebooks[session.notebook]
    asked = {section_of(step): step for step in re.findall(r"^## (Step .+)$", notebook.prose, flags=re.M)}
    found = []
    for name in session.shown:
        if name not in notebook.sections:
            raise PublishError(
                f"a plan visits the section {name!r} of {session.notebook}, which has {list(notebook.sections)}"
            )
        what, minutes = asked.get(name, name), notebook.sections[name]
        found.append((what, minutes, False) if found else (f"Open it; {what}", OPEN + minutes, False))
    minutes = exercise_minutes(notebook)
    if session.exercises > len(minutes):
        raise PublishError(f"a plan has {session.exercises} exercises of {session.notebook}, which has {len(minutes)}")
    what = "Your turn" + (f": {session.exercises} exercises" if session.exercises > 1 else ": the first exercise")
    found.append((what, sum(minutes[: session.exercises]), True))
    slack = -sum(minutes for _, minutes, _ in found) % ROUND
    return [*found, ("Slack", slack, False)] if slack else found


def exercise_minutes(notebook: Notebook) -> list[int]:
    """What each of its exercises states, in order."""
    prose = notebook.prose.partition("\n## Your turn")[2]
    return [int(minutes) for minutes in re.findall(r"^\*\*[^*\n]*?(\d+) minutes[^*\n]*\*\*", prose, flags=re.M)]


def _plan(plan: Plan, notebooks: dict[str, Notebook]) -> Iterator[str]:
    hours, minutes = divmod(sum(minutes_of(item, notebooks) for item in plan.items), 60)
    length = f"{hours} hour{'s' * (hours > 1)}" + (f" {minutes} minutes" if minutes else "")
    yield f"## {plan.title}: {length}"
    yield f"{plan.aim} Hands-on: {hands_on(plan, notebooks):.0%} of the time without breaks."
    yield div("timetable", "\n".join(_rows(plan, notebooks)))
    short = "**If time runs short,** leave out the last step of a session; never its first exercise."
    yield div("aside", short, f"**To read at home.** {_left_out(plan, notebooks)}")


def _left_out(plan: Plan, notebooks: dict[str, Notebook]) -> str:
    """What the plan leaves out, with its minutes."""
    shown = {item.notebook: item.shown for item in plan.items if isinstance(item, Session)}
    parts = [m for name, own in shown.items() for part, m in notebooks[name].sections.items() if part not in own]
    whole = [f"{verbatim(name)} ({book.minutes} min)" for name, book in notebooks.items() if name not in shown]
    return f"The other sections of these notebooks ({sum(parts)} min), and {', '.join(whole)}."


def _rows(plan: Plan, notebooks: dict[str, Notebook]) -> Iterator[str]:
    yield "| from | to | min | what |"
    yield "| ---: | ---: | ---: | --- |"
    clock = START
    for item in plan.items:
        minutes = minutes_of(item, notebooks)
        begin = f"| {_time(clock)} | {_time(clock + minutes)} | **{minutes}** |"
        clock += minutes
        if isinstance(item, Pause):
            yield f"{begin} ***{item.what}*** |"
        else:
            yield f"{begin} **{verbatim(item.notebook)}**: {item.goal} |"
            yield from (f"|  |  | {m} | {_marked(what, own)} |" for what, m, own in parts(item, notebooks))


def _marked(what: str, own: bool) -> str:
    return f"**{what}**" if own else what


def _time(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"
