"""What each edition prints of a notebook's parts, as markdown for pandoc.

The markdown says what a thing is (`::: prediction`); how it looks on paper and on screen is the press's business.
"""

import ast
import csv
import re
from collections.abc import Callable, Iterable
from itertools import takewhile

from course_utils import data
from course_utils.publish.handouts.breaks import WHOLE
from course_utils.publish.handouts.cells import Notebook, Part

EDITIONS = {"learner": "Learner's handout", "instructor": "Instructor's handout"}

_INTRODUCTION = {
    "learner": "Tick a box before you read on. Code that answers a prediction is printed without its output and "
    "assertions, and with `...` for what would say the answer; run the notebook to see them.",
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
    source = re.sub(r"  # fmt: skip$", "", source, flags=re.M)  # for a formatter, not for readers
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", source)), default=0))
    return f"{fence}{kind}\n{source}\n{fence}"


def verbatim(text: str) -> str:
    """Text in which nothing is markup.

    >>> print(verbatim("2 * w < p.grad[0], reduction='none'"))
    2 \\* w \\< p.grad\\[0\\], reduction=\\'none\\'
    """
    text = re.sub(r"([\\`*_{}\[\]<>#$|~^:])", r"\\\1", text)
    return re.sub(r"(?<=[=(])(['\"])(\w*)\1", r"\\\1\2\\\1", text)  # code's quotes are straight


class _Page:
    """What both editions share. A method for each kind of part gives its markdown."""

    edition = ""

    def __init__(self, notebook: Notebook, figures: dict[str, bytes]):
        self.notebook = notebook
        self.figures = figures
        self.place = 0  # of the part that is being shown

    def text(self) -> str:
        title, *rest = self.notebook.parts
        blocks = [title.text, div("introduction", self.introduction()), *self.front()]
        for place, part in enumerate(rest):
            self.place = place + 1
            blocks += self.block(part)
        return "\n\n".join([*blocks, *self.back()])

    def introduction(self) -> str:
        return _INTRODUCTION[self.edition]

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

    def show_screen(self, part: Part) -> Iterable[str]:
        yield div("screen", verbatim(part.text))

    def show_claim(self, part: Part) -> Iterable[str]:
        return []

    def prediction(self, part: Part, mark: Callable[[str], str]) -> str:
        options = "\n".join(f"- []{{.{mark(option)}}} {verbatim(option)}" for option in part.options)
        return div("prediction", f"**Prediction {part.number}.** {verbatim(part.text)}", options)


class _Learner(_Page):
    """Without answers. What follows a cell that answers a prediction is kept for the end, as a note."""

    edition = "learner"

    def __init__(self, notebook: Notebook, figures: dict[str, bytes]):
        super().__init__(notebook, figures)
        self.hints: list[tuple[str, str]] = []
        self.notes: list[list[str]] = []
        self.answered: list[Part] = []  # the predictions whose answers the parts here explain
        self.kept: list[str] = []  # of these parts, what goes into the note

    def introduction(self) -> str:
        kinds = {part.kind for part in self.notebook.parts}
        names = {"measured": "what the answers mean", "hints": "hints for the exercises"}
        last = [words for kind, words in names.items() if kind in kinds]
        return super().introduction() + (f" At the end\\: {_listed(last)}." if last else "")

    def block(self, part: Part) -> Iterable[str]:
        if part.kind in ("output", "table", "figure") and self.answered:
            self.kept += super().block(part)
            return []
        return super().block(part)

    def show_prose(self, part: Part) -> Iterable[str]:
        if not self.answered:
            yield part.text
            return
        parts = self.notebook.parts
        explanation, rest = _split_explanation(part.text, self.place + 1 < len(parts))
        numbers = [str(guess.number) for guess in self.answered]
        which = f"Prediction{'s' * (len(numbers) > 1)} {_listed(numbers)}"
        self.notes.append([div("lead", f"**Note {len(self.notes) + 1}**, on {which}"), *self.kept, explanation])
        self.answered, self.kept = [], []
        yield div("pointer", f"What it means: note {len(self.notes)} at the end.")
        if rest:
            yield rest

    def show_code(self, part: Part) -> Iterable[str]:
        source, following = part.text, self.notebook.parts[self.place + 1 :]
        if part.spoiler:
            used_later = " ".join(other.text for other in following if other.kind in ("code", "exercise", "solution"))
            source = _without_assertions(source, used_later)
        until_code = list(takewhile(lambda other: other.kind not in ("code", "prose", "exercise"), following))
        answers = [other.answer for other in until_code if other.kind == "measured"]
        if answers or self.answered:
            captions = [other.text for other in until_code if other.kind == "figure"]
            source = _without_what_answers(source, [*answers, *(guess.answer for guess in self.answered)], captions)
        yield code(source)

    def show_output(self, part: Part) -> Iterable[str]:
        return [] if part.spoiler else super().show_output(part)

    def show_table(self, part: Part) -> Iterable[str]:
        return [] if part.spoiler else super().show_table(part)

    def show_figure(self, part: Part) -> Iterable[str]:
        return [] if part.spoiler else super().show_figure(part)

    def show_prediction(self, part: Part) -> Iterable[str]:
        yield self.prediction(part, lambda option: "open")

    def show_measured(self, part: Part) -> Iterable[str]:
        self.answered.append(part)
        yield div("measured", f"**Prediction {part.number}**, measured: []{{.blank}}")

    def show_exercise(self, part: Part) -> Iterable[str]:
        whole = str(len(part.text.splitlines()) <= WHOLE).lower()
        yield div(f"{{.exercise whole={whole}}}", code(part.text))
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
        if self.notes:
            yield div("notes", "## Read after measuring", *(div("note", *note) for note in self.notes))
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
        whole = str(len(part.text.splitlines()) <= 2 * WHOLE).lower()
        yield div(f"{{.solution whole={whole}}}", "**Solution**", code(part.text), verbatim(part.answer))

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


def _without_what_answers(source: str, answers: list[str], captions: list[str]) -> str:
    """A cell's code with `...` in place of what is revealed, of captions, and of what it prints beside the answer.

    >>> print(_without_what_answers("print('all 8 of them', n)\\nguess.reveal('8' if n else '4')", ["8"], []))
    print(...)
    guess.reveal(...)
    >>> print(_without_what_answers("show(draw(a), 'Only one line falls.')", [], ["Only one line falls."]))
    show(draw(a), "...")
    """
    places = []
    left = [ast.parse(source)]
    while left:
        node = left.pop()
        name = ""
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        said = _strings(node)
        if name == "reveal" or (name == "print" and any(_says(" ".join(said), answer) for answer in answers)):
            places.append((node.args[0], (node.keywords or node.args)[-1], "..."))
        elif isinstance(node, ast.Constant) and any(len(text) > 9 and _is_in(text, captions) for text in said):
            places.append((node, node, '"..."'))
        else:
            left += ast.iter_child_nodes(node)
    return _replaced(source, places)


def _strings(node: ast.AST) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _is_in(text: str, captions: list[str]) -> bool:
    return any(text.strip() in caption for caption in captions)


def _says(text: str, answer: str) -> bool:
    """
    >>> _says("momentum 1.0, and", "1.0"), _says("in 1.05", "1.0")
    (True, False)
    """
    return bool(re.search(rf"(?<![\w.,]){re.escape(answer)}(?![\w]|[.,]\d)", text))


def _replaced(source: str, places: list[tuple[ast.expr, ast.expr | ast.keyword, str]]) -> str:
    """The code with some of its expressions, each from the begin of one node to the end of another, replaced."""
    lines = [line.encode() for line in source.splitlines()]  # as ast counts
    for first, last, text in sorted(places, key=lambda place: (place[0].lineno, place[0].col_offset), reverse=True):
        head, tail = lines[first.lineno - 1][: first.col_offset], lines[last.end_lineno - 1][last.end_col_offset :]
        if text == "..." and not head.strip() and tail.strip() in (b"", b","):  # brackets on lines of their own
            before, after = lines[first.lineno - 2].rstrip(), lines[last.end_lineno].lstrip()
            if before.endswith(b"(") and after.startswith(b")"):
                lines[first.lineno - 2 : last.end_lineno + 1] = [before + text.encode() + after]
                continue
        lines[first.lineno - 1 : last.end_lineno] = [head + text.encode() + tail]
    return b"\n".join(lines).decode()


def _split_explanation(prose: str, code_follows: bool) -> tuple[str, str]:
    """What explains an answer, up to the next heading, and the rest. Where none comes, the last paragraph leads on.

    >>> _split_explanation("It is 8.\\n\\n## Step 2", True)
    ('It is 8.', '## Step 2')
    >>> _split_explanation("It is 8.\\n\\nNow we count.", True)
    ('It is 8.', 'Now we count.')
    """
    outside_code = re.split(r"(^```.*?^```)", prose, flags=re.M | re.S)
    length = 0
    for piece in outside_code:
        heading = None if piece.startswith("```") else re.search(r"^#{2,3} ", piece, flags=re.M)
        if heading:
            place = length + heading.start()
            return prose[:place].strip(), prose[place:].strip()
        length += len(piece)
    head, gap, last = prose.rpartition("\n\n")
    return (head.strip(), last.strip()) if gap and code_follows and "```" not in prose else (prose.strip(), "")


def _listed(words: list[str]) -> str:
    """
    >>> _listed(["1"]), _listed(["1", "2", "3"])
    ('1', '1, 2 and 3')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


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
