"""Workshop plans: half a day and a full day, minute by minute, from the minutes that the notebooks' sections take.

A plan says what is visited; how long it takes is computed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from course_utils.publish import PublishError
from course_utils.publish.handouts.editions import div, verbatim
from course_utils.publish.notebook import Notebook, section_of

TITLE, EDITION, TEMPLATE = "Workshop plans", "For the instructor", "handout"
START = 9 * 60  # minutes after midnight


@dataclass(frozen=True)
class Visit:
    """A notebook, and those of its sections that there is time for; the rest is read at home."""

    notebook: str
    sections: tuple[str, ...]
    why: str  # it is in the plan


@dataclass(frozen=True)
class Pause:
    what: str
    minutes: int


@dataclass(frozen=True)
class Plan:
    title: str
    aim: str
    items: tuple[Visit | Pause, ...]


def _steps(*numbers: int) -> tuple[str, ...]:
    return tuple(f"Step {number}" for number in numbers)


_BEGIN, _END = "Why, Predict", "Metrics to watch, Recall, Takeaways"
_SEE, _TURN = "See it, Myth", "Your turn"
_START = ("Set-up", "One missing line", "Four words")

PLANS = (
    Plan(
        "Half a day",
        "For people who train with PyTorch and have never looked at `.grad`. At the end everybody has written a loop "
        "that accumulates any data exactly.",
        (
            Pause("Arrival, set-up, who is here", 10),
            Visit("00_start", _START, "does everybody's machine work?"),
            Visit("01_gradients", (_BEGIN, *_steps(3, 4, 5, 6), _SEE), "why PyTorch adds"),
            Visit("02_zeroing", (_BEGIN, *_steps(1, 3, 5, 7), _SEE, _TURN, _END), "where zeroing belongs"),
            Pause("Break", 15),
            Visit("02b_forgetting", (_BEGIN, *_steps(3, 4), _SEE), "the bug has an exact name"),
            Visit(
                "03_accumulation", (_BEGIN, *_steps(1, 2, 3, 7, 8), _SEE, _TURN, _END), "the window is a large batch"
            ),
            Pause("Break", 10),
            Visit("03b_windows", (_BEGIN, *_steps(2, 3, 5, 6, 7), _SEE, _TURN, _END), "tails, unequal pieces"),
            Visit("04_exactness", (_BEGIN, *_steps(1, 2), _SEE), "what is exact; hand out the cheat sheet"),
            Visit("08_pitfalls", (_BEGIN, *_steps(1, 2, 3), _END), "what a curve does not show, and an audit does"),
            Pause("Questions; what to read at home", 15),
        ),
    ),
    Plan(
        "A full day",
        "As above, and from there to tokens, precision and public bugs. At the end everybody has audited a "
        "script, if possible one of their own.",
        (
            Pause("Arrival, set-up, who is here", 10),
            Visit("00_start", _START, "does everybody's machine work?"),
            Visit("01_gradients", (_BEGIN, *_steps(3, 4, 5, 6, 10, 11), _SEE), "why PyTorch adds"),
            Visit("02_zeroing", (_BEGIN, *_steps(1, 2, 3, 4, 5, 6, 7), _SEE, _TURN, _END), "where zeroing belongs"),
            Pause("Break", 15),
            Visit("02b_forgetting", (_BEGIN, *_steps(3, 4, 7, 8), _SEE), "the bug has an exact name"),
            Visit("03_accumulation", (_BEGIN, *_steps(1, 2, 3, 4, 5, 7, 8), _SEE, _TURN, _END), "the large batch"),
            Visit("03b_windows", (_BEGIN, *_steps(2, 3, 4, 5, 6, 7), _SEE, _TURN, _END), "tails, unequal pieces"),
            Pause("Lunch", 60),
            Visit("03c_memory_and_time", (_BEGIN, *_steps(1, 2, 3, 4, 7, 8, 10), _SEE), "what it costs"),
            Visit("03d_tokens", (_BEGIN, *_steps(2, 3, 5, 6), _SEE, _TURN), "over what is the mean taken?"),
            Visit("04_exactness", (_BEGIN, *_steps(1, 2, 3, 4, 6), _SEE), "the table of what is exact"),
            Pause("Break", 15),
            Visit("05_precision", (_BEGIN, *_steps(1, 2, 3, 4, 5, 8), _SEE), "sums and updates that get lost"),
            Visit("06_training_loop", (_BEGIN, *_steps(1, 2, 3, 6, 7), _SEE), "the schedule, and whose gradients"),
            Pause("Break", 10),
            Visit("08_pitfalls", (_BEGIN, *_steps(1, 2, 3, 5, 6, 8, 9), _SEE, _TURN, _END), "the clinic"),
            Pause("Questions; audit a script of your own", 15),
        ),
    ),
)


def markdown(notebooks: dict[str, Notebook]) -> str:
    """Both plans; `PublishError` if one visits a section that its notebook does not have."""
    first, *others = [list(_plan(plan, notebooks)) for plan in PLANS]
    return "\n\n".join([f"# {TITLE}", *first, *(div("plan", *plan) for plan in others)])


def minutes_of(item: Visit | Pause, notebooks: dict[str, Notebook]) -> int:
    """How long a visit or a pause takes."""
    return item.minutes if isinstance(item, Pause) else sum(_sections(item, notebooks).values())


def _sections(visit: Visit, notebooks: dict[str, Notebook]) -> dict[str, int]:
    """The minutes of the sections that are visited."""
    sections = notebooks[visit.notebook].sections if visit.notebook in notebooks else {}
    for name in visit.sections:
        if name not in sections:
            raise PublishError(f"a plan visits the section {name!r} of {visit.notebook}, which has {list(sections)}")
    return {name: sections[name] for name in visit.sections}


def _plan(plan: Plan, notebooks: dict[str, Notebook]) -> Iterator[str]:
    hours, minutes = divmod(sum(minutes_of(item, notebooks) for item in plan.items), 60)
    yield f"## {plan.title}: {hours} hours" + (f" {minutes} minutes" if minutes else "")
    yield plan.aim
    yield div("timetable", "\n".join(_rows(plan, notebooks)))
    skip = "**What to skip.** " + _skipped(plan, notebooks)
    yield div("aside", skip, "**If time runs short,** drop in this order: " + _to_drop(plan))


def _rows(plan: Plan, notebooks: dict[str, Notebook]) -> Iterator[str]:
    yield "| from | to | min | what |"
    yield "| ---: | ---: | ---: | --- |"
    clock = START
    for item in plan.items:
        if isinstance(item, Pause):
            lines = [(item.minutes, f"**{item.minutes}** | ***{item.what}***")]
        else:
            yield f"|  |  | **{minutes_of(item, notebooks)}** | **{verbatim(item.notebook)}**, {item.why} |"
            steps = re.findall(r"^## (Step .+)$", notebooks[item.notebook].prose, flags=re.M)
            asked = {section_of(step): step for step in steps}
            lines = [(m, f"{m} | {asked.get(name, name)}") for name, m in _sections(item, notebooks).items()]
        for minutes, what in lines:
            yield f"| {_time(clock)} | {_time(clock + minutes)} | {what} |"
            clock += minutes


def _skipped(plan: Plan, notebooks: dict[str, Notebook]) -> str:
    """What the plan leaves out, notebook by notebook, with its minutes."""
    visited = {item.notebook: item.sections for item in plan.items if isinstance(item, Visit)}
    partly = [
        f"{verbatim(name)}: {_short([part for part in notebooks[name].sections if part not in sections])} ({left} min)"
        for name, sections in visited.items()
        if (left := sum(m for part, m in notebooks[name].sections.items() if part not in sections))
    ]
    whole = [f"{verbatim(name)} ({book.minutes} min)" for name, book in notebooks.items() if name not in visited]
    return "; ".join(partly) + ". Not opened at all: " + ", ".join(whole) + ". All of it can be read at home."


def _short(sections: list[str]) -> str:
    """
    >>> _short(["Step 2", "Step 6", "Your turn"])
    'Steps 2, 6, Your turn'
    """
    steps = [name.removeprefix("Step ") for name in sections if name.startswith("Step ")]
    rest = [name for name in sections if not name.startswith("Step ")]
    return ", ".join([*([f"Step{'s' * (len(steps) > 1)} {', '.join(steps)}"] if steps else []), *rest])


def _to_drop(plan: Plan) -> str:
    """The last step of each visit that has several goes first; exercises and predictions stay."""
    visits = [item for item in plan.items if isinstance(item, Visit)]
    steps = {visit.notebook: [part for part in visit.sections if part.startswith("Step ")] for visit in visits}
    last = [f"{verbatim(name)} {several[-1]}" for name, several in steps.items() if len(several) > 2]
    return ", ".join(last) + "; never the exercises."


def _time(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"
