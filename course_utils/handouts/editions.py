"""What each edition prints of a notebook's parts, as markdown for pandoc.

The markdown says what a thing is (`::: prediction`); how it looks on paper and on screen is the press's business.
"""

import ast
import csv
import re
from collections.abc import Callable, Iterable

from course_utils import data
from course_utils.handouts.cells import Notebook, Part

EDITIONS = {"learner": "Learner's handout", "instructor": "Instructor's handout"}

_INTRODUCTION = {
    "learner": "Tick a box before you read on: each prediction is answered further down. Code that answers one is "
    "printed without its output and assertions; run the notebook to see them. Hints are on the last page.",
    "instructor": "As the learner's handout, with answers, solutions and evidence. *Evidence* names the fact that a "
    "cell shows (`data/claims.csv` lists them), what is commonly believed, and a change under which the cell fails.",
}
_VERDICT = {
    "true": "true",
    "true-if": "true under conditions",
    "imprecise": "imprecise",
    "wrong": "wrong",
    "outdated": "outdated",
    "missing": "seldom said",
}


def markdown(notebook: Notebook, edition: str) -> tuple[str, dict[str, bytes]]:
    """The text of one edition of a notebook, and the figures that it names by file."""
    figures: dict[str, bytes] = {}
    page = _Learner(notebook, figures) if edition == "learner" else _Instructor(notebook, figures)
    return page.text(), figures


def div(kind: str, *blocks: str) -> str:
    return "\n\n".join([f"::::: {kind}", *blocks, ":::::"])


def code(source: str, kind: str = "python") -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", source)), default=0))
    return f"{fence}{kind}\n{source}\n{fence}"


def verbatim(text: str) -> str:
    """Text in which nothing is markup.

    >>> verbatim("2 * w < p.grad[0]")
    '2 \\\\* w \\\\< p.grad\\\\[0\\\\]'
    """
    return re.sub(r"([\\`*_{}\[\]<>#$|~^:])", r"\\\1", text)


class _Page:
    """What both editions share. A method for each kind of part gives its markdown."""

    edition = ""

    def __init__(self, notebook: Notebook, figures: dict[str, bytes]):
        self.notebook = notebook
        self.figures = figures

    def text(self) -> str:
        title, *rest = self.notebook.parts
        blocks = [title.text, div("introduction", _INTRODUCTION[self.edition]), *self.front()]
        for part in rest:
            blocks += self.block(part)
        return "\n\n".join([*blocks, *self.back()])

    def block(self, part: Part) -> Iterable[str]:
        return getattr(self, "show_" + part.kind.replace("-", "_"))(part)

    def front(self) -> Iterable[str]:
        return []

    def back(self) -> Iterable[str]:
        return []

    def show_prose(self, part: Part) -> Iterable[str]:
        yield part.text

    def show_code(self, part: Part) -> Iterable[str]:
        yield code(part.text)

    def show_set_up(self, part: Part) -> Iterable[str]:
        """Once is enough: the cell is the same in every notebook."""
        if self.notebook.name.startswith("00"):
            yield code(part.text)

    def show_output(self, part: Part) -> Iterable[str]:
        yield code(part.text, "output")

    def show_table(self, part: Part) -> Iterable[str]:
        yield code(part.text, "{=html}")

    def show_figure(self, part: Part) -> Iterable[str]:
        name = f"figure-{len(self.figures) + 1}.png"
        self.figures[name] = part.png
        yield div("drawing", f"![{verbatim(part.text)}]({name}){{width={part.inches:g}in}}")

    def show_sliders(self, part: Part) -> Iterable[str]:
        yield div("screen", "On screen. " + verbatim(part.text))

    def show_claim(self, part: Part) -> Iterable[str]:
        return []

    def prediction(self, part: Part, mark: Callable[[str], str]) -> str:
        options = "\n".join(f"- []{{.{mark(option)}}} {verbatim(option)}" for option in part.options)
        return div("prediction", f"**Prediction {part.number}.** {verbatim(part.text)}", options)


class _Learner(_Page):
    edition = "learner"

    def __init__(self, notebook: Notebook, figures: dict[str, bytes]):
        super().__init__(notebook, figures)
        self.hints: list[tuple[str, str]] = []

    def show_code(self, part: Part) -> Iterable[str]:
        later = self.notebook.parts[self.notebook.parts.index(part) + 1 :]
        used_later = " ".join(other.text for other in later if other.kind in ("code", "exercise", "solution"))
        yield code(_without_assertions(part.text, used_later) if part.spoiler else part.text)

    def show_output(self, part: Part) -> Iterable[str]:
        return [] if part.spoiler else super().show_output(part)

    def show_table(self, part: Part) -> Iterable[str]:
        return [] if part.spoiler else super().show_table(part)

    def show_figure(self, part: Part) -> Iterable[str]:
        return [] if part.spoiler else super().show_figure(part)

    def show_prediction(self, part: Part) -> Iterable[str]:
        yield self.prediction(part, lambda option: "open")

    def show_measured(self, part: Part) -> Iterable[str]:
        yield div("measured", f"**Prediction {part.number}**, measured: []{{.blank}}")

    def show_exercise(self, part: Part) -> Iterable[str]:
        yield div("exercise", code(part.text))
        yield div(f"{{.room lines={part.number}}}", "")

    def show_hints(self, part: Part) -> Iterable[str]:
        self.hints += part.pairs
        return []

    def show_solution(self, part: Part) -> Iterable[str]:
        return []

    def show_cards(self, part: Part) -> Iterable[str]:
        for question, _ in part.pairs:
            yield div("card", verbatim(question))

    def back(self) -> Iterable[str]:
        if self.hints:
            yield div("hints", "## Hints", *_definitions(self.hints))


class _Instructor(_Page):
    edition = "instructor"

    def __init__(self, notebook: Notebook, figures: dict[str, bytes]):
        super().__init__(notebook, figures)
        self.facts = facts()
        self.seen: set[str] = set()

    def front(self) -> Iterable[str]:
        if self.notebook.notes:
            yield div("instructor", "**For the instructor**", self.notebook.notes)

    def show_prose(self, part: Part) -> Iterable[str]:
        """Headings with the minutes of their sections."""

        def timed(heading: re.Match) -> str:
            for names, minutes in self.notebook.sections.items():
                first, *others = names.split(", ")
                if first == section(heading[1]):
                    joined = f", with {' and '.join(others)}" if others else ""
                    return f"{heading[0]} [{minutes} min{joined}]{{.minutes}}"
            return heading[0]

        yield re.sub(r"^## (.+)$", timed, part.text, flags=re.M)

    def show_prediction(self, part: Part) -> Iterable[str]:
        yield self.prediction(part, lambda option: "ticked" if option == part.answer else "open")

    def show_measured(self, part: Part) -> Iterable[str]:
        yield div("measured", f"**Prediction {part.number}**, measured: {verbatim(part.answer)}")

    def show_exercise(self, part: Part) -> Iterable[str]:
        yield code(part.text)

    def show_hints(self, part: Part) -> Iterable[str]:
        yield div("inline-hints", *_definitions(part.pairs))

    def show_solution(self, part: Part) -> Iterable[str]:
        together = str(len(part.text.splitlines()) < 40).lower()
        yield div(f"{{.solution together={together}}}", "**Solution**", code(part.text), verbatim(part.answer))

    def show_cards(self, part: Part) -> Iterable[str]:
        for question, answer in part.pairs:
            yield div("answered", f"**{verbatim(question)}** {verbatim(answer)}")

    def show_claim(self, part: Part) -> Iterable[str]:
        fact = self.facts.get(part.text)
        if fact is None or part.text in self.seen:
            return
        self.seen.add(part.text)
        believed = f"*Believed:* {verbatim(fact['belief'].rstrip('.'))} ({_VERDICT[fact['verdict']]})."
        yield div(
            "evidence",
            f"**Evidence** `{part.text}`. {verbatim(fact['statement'])} {believed} {falsifier(fact['falsifier'])}",
        )


def section(heading: str) -> str:
    """
    >>> section("Step 1 · What does `step()` do?"), section("Your turn")
    ('Step 1', 'Your turn')
    """
    return heading.split(" · ")[0]


def facts() -> dict[str, dict[str, str]]:
    """The facts of `data/claims.csv` by their id."""
    with (data.folder() / "claims.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def falsifier(entry: str) -> str:
    """What makes a fact's cell fail, in words.

    >>> falsifier("torch: zero_grad does nothing")
    '*Fails if:* zero\\\\_grad does nothing.'
    >>> falsifier("cell: a => b")
    '*Fails if:* `b` stands in place of `a`.'
    """
    what = entry.split(": ", 1)[1].rstrip(".")
    if " => " in what:
        old, new = (part.strip() for part in what.split(" => ", 1))
        return f"*Fails if:* `{new}` stands in place of `{old}`."
    return f"*Fails if:* {verbatim(what)}."


def _definitions(hints: list[tuple[str, str]]) -> list[str]:
    return [div("hint", f"**{symptom}** {hint}") for symptom, hint in hints]


def _without_assertions(source: str, used_later: str) -> str:
    """A cell's code without its assertions and what they alone use, which say what was measured.

    >>> print(_without_assertions("right = [1, 4]\\nfound = look()\\nassert found == right", "show(found)"))
    found = look()
    """
    gone = _statements(source, lambda statement: isinstance(statement, ast.Assert))
    kept = _without(source, gone)

    def is_expected_value(statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            return False
        name = statement.targets[0].id
        return len(re.findall(rf"\b{name}\b", kept)) == 1 and not re.search(rf"\b{name}\b", used_later)

    return _without(source, [*gone, *_statements(source, is_expected_value)])


def _statements(source: str, wanted: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
    """The wanted statements of every block, unless a block holds nothing else."""
    blocks = [getattr(node, name, None) for node in ast.walk(ast.parse(source)) for name in ("body", "orelse")]
    found = [[statement for statement in block if wanted(statement)] for block in blocks if isinstance(block, list)]
    blocks = [block for block in blocks if isinstance(block, list)]
    return [s for block, some in zip(blocks, found, strict=True) if len(some) < len(block) for s in some]


def _without(source: str, statements: list[ast.stmt]) -> str:
    gone = {line for statement in statements for line in range(statement.lineno, statement.end_lineno + 1)}
    lines = [line for number, line in enumerate(source.splitlines(), start=1) if number not in gone]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip()


def link_siblings(text: str, names: Iterable[str], kind: str) -> str:
    """Links between notebooks lead to their handouts; to those that are not built there is none.

    >>> link_siblings("See [02_zeroing](02_zeroing.ipynb), [09](09_capstone.ipynb).", ["02_zeroing"], "pdf")
    'See [02_zeroing](02_zeroing.pdf), *09*.'
    """

    def link(found: re.Match) -> str:
        return f"[{found[1]}]({found[2]}.{kind})" if found[2] in names else f"*{found[1]}*"

    return re.sub(r"\[([^\[\]]+)\]\((\w+)\.ipynb(?:#[^)]*)?\)", link, text)
