"""What each edition prints of a notebook's parts, as Markdown for pandoc.

The Markdown says what a thing is (`::: prediction`); how it looks on paper is decided in `press` and its templates.
"""

import re
from collections.abc import Callable, Iterable
from itertools import dropwhile, takewhile

from course_utils.publish.facts import Breakage, Edit, read_facts
from course_utils.publish.handouts import parts
from course_utils.publish.handouts.answers import split_explanation, without_assertions, without_what_answers
from course_utils.publish.handouts.breaks import WHOLE
from course_utils.publish.handouts.parts import Handout, Part
from course_utils.publish.handouts.room import BLANK, with_room
from course_utils.publish.notebook import section_of
from course_utils.publish.reading import reading

EDITIONS = {"learner": "Learner's handout", "worksheet": "Worksheet", "instructor": "Instructor's handout"}


def markdown(handout: Handout, edition: str) -> tuple[str, dict[str, bytes]]:
    """The text of one edition of a notebook, and the figures that it names by file."""
    page = {"learner": _Learner, "worksheet": _Worksheet, "instructor": _Instructor}[edition](handout)
    return page.text(), page.figures


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


def checklist(text: str) -> str:
    """What a judge says, and each line that somebody is to mark as a line of its own.

    >>> print(checklist("Mark what holds.\\n  [ ] It runs."))
    Mark what holds.\\
    []{.open}It runs.
    """
    return "\\\n".join(verbatim(line).strip().replace("\\[ \\] ", "[]{.open}") for line in text.splitlines())


def _cell(text: str) -> str:
    """A cell of a table, with code between backquotes.

    >>> print(_cell("`a | b` sets w[0]"))
    `a \\| b` sets w\\[0\\]
    """
    pieces = enumerate(text.split("`"))  # code is every second one
    return "`".join(piece.replace("|", "\\|") if place % 2 else verbatim(piece) for place, piece in pieces)


class _Page:
    """What both editions share. A method for each kind of part, `show_` and its name, gives its Markdown."""

    left_out: tuple[type, ...] = ()

    def __init__(self, handout: Handout):
        self.notebook, self.handout = handout.notebook, handout
        self.figures: dict[str, bytes] = {}
        self.place = 0  # of the part that is being shown

    def text(self) -> str:
        title, *rest = self.handout.parts
        blocks = [title.text, *self.front()]
        for self.place, part in enumerate(rest, start=1):
            blocks += self.block(part)
        return "\n\n".join([*blocks, *self.back()])

    def block(self, part: Part) -> Iterable[str]:
        return [] if isinstance(part, self.left_out) else getattr(self, "show_" + type(part).__name__.lower())(part)

    def back(self) -> Iterable[str]:
        return []

    def show_prose(self, part: parts.Prose) -> Iterable[str]:
        yield part.text

    def show_code(self, part: parts.Code) -> Iterable[str]:
        yield code(part.source)

    def show_output(self, part: parts.Output) -> Iterable[str]:
        yield code(part.text, "output")

    def show_table(self, part: parts.Table) -> Iterable[str]:
        yield code(part.html, "{=html}")

    def show_figure(self, part: parts.Figure) -> Iterable[str]:
        name, caption = f"figure-{part.number}.png", verbatim(part.caption)
        self.figures[name] = part.png
        picture = f"![{caption}]({name}){{width={part.inches:g}in}}"
        yield div("drawing", picture, div("caption", f"**Figure {part.number}.** {caption}"))

    def show_filmstrip(self, part: parts.Filmstrip) -> Iterable[str]:
        rows = [part.head, ["---"] * len(part.head), *(map(_cell, row) for row in part.rows)]
        yield "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def show_onscreen(self, part: parts.OnScreen) -> Iterable[str]:
        yield div("screen", verbatim(part.text))

    def prediction(self, part: parts.Prediction, mark: Callable[[str], str]) -> str:
        options = "\n".join(f"- []{{.{mark(option)}}} {verbatim(option)}" for option in part.options)
        return div("prediction", f"**Prediction {part.number}.** {verbatim(part.question)}", options)


class _Learner(_Page):
    """Without answers. What follows a cell that answers a prediction is kept for the end, as a note."""

    left_out = (parts.Claim, parts.Solution)
    most_room = 99  # lines to write on, in one exercise
    gap = True  # between these and what follows

    def __init__(self, handout: Handout):
        super().__init__(handout)
        self.takeaways = ""
        self.hints: list[tuple[str, str]] = []
        self.notes: list[list[str]] = []
        self.answered: list[parts.Prediction] = []  # those that the parts here explain
        self.kept: list[str] = []  # of these parts, what goes into the note
        self.noted = False  # whether there is a note already, which goes on

    def front(self) -> Iterable[str]:
        ends = {parts.Measured: "what the answers mean", parts.Hints: "hints for the exercises"}
        last = [words for kind, words in ends.items() if self.handout.of(kind)]
        introduction = (
            "Tick a box before you read on. Code that answers a prediction is printed without its output and "
            "assertions, and with `...` for what would say the answer; run the notebook to see them."
        )
        yield div("introduction", introduction + (f" At the end\\: {_listed(last)}." if last else ""))

    def block(self, part: Part) -> Iterable[str]:
        if isinstance(part, parts.Output | parts.Table | parts.Figure | parts.Filmstrip):
            if part.spoiler and not (isinstance(part, parts.Figure) and self.answered):
                return []
            if self.answered:
                self.kept += super().block(part)
                return []
        return super().block(part)

    def show_prose(self, part: parts.Prose) -> Iterable[str]:
        if part.text.startswith("## Takeaways"):
            self.takeaways = part.text
            return
        if not self.answered:
            yield part.text
            return
        following = self.handout.parts[self.place + 1 :]
        explanation, rest = split_explanation(part.text, bool(following))
        if not self.noted:
            numbers = [str(prediction.number) for prediction in self.answered]
            which = f"Prediction{'s' * (len(numbers) > 1)} {_listed(numbers)}"
            self.notes.append([div("lead", f"**Note {len(self.notes) + 1}**, on {which}")])
            yield div("pointer", f"What it means: note {len(self.notes)} at the end.")
        self.notes[-1] += [*self.kept, explanation]
        self.kept = []
        self.noted = not rest and isinstance(next(iter(following), None), parts.Code)  # which shows more of the same
        if not self.noted:
            self.answered = []
        if rest:
            yield rest

    def show_code(self, part: parts.Code) -> Iterable[str]:
        source, following = part.source, self.handout.parts[self.place + 1 :]
        if part.spoiler or self.noted or self.answered:
            later = (parts.Code, parts.Exercise, parts.Solution)
            source = without_assertions(source, " ".join(p.source for p in following if isinstance(p, later)))
        ends = (parts.Code, parts.Prose, parts.Exercise)
        own = list(takewhile(lambda other: not isinstance(other, ends), following))
        answers = [other.prediction.answer for other in own if isinstance(other, parts.Measured)]
        if answers or self.answered:
            captions = [other.caption for other in own if isinstance(other, parts.Figure)]
            answers += [prediction.answer for prediction in self.answered]
            source = without_what_answers(source, answers, captions)
        if source:
            yield code(source)

    def show_prediction(self, part: parts.Prediction) -> Iterable[str]:
        yield self.prediction(part, lambda option: "open")

    def show_measured(self, part: parts.Measured) -> Iterable[str]:
        if self.noted:
            self.answered, self.noted = [], False
        self.answered.append(part.prediction)
        yield div("measured", f"**Prediction {part.prediction.number}**, {part.basis}: []{{.blank}}")

    def show_exercise(self, part: parts.Exercise) -> Iterable[str]:
        stub, below = with_room(part.source, part.solution, self.most_room)
        height = len(stub.splitlines()) + 0.7 * stub.count(f"{BLANK}\n")  # in lines of code
        yield div(f"{{.exercise whole={str(height <= WHOLE).lower()}}}", code(stub, "stub"))
        if below:
            yield div(f"{{.room lines={below} gap={str(self.gap).lower()}}}", "")

    def show_hints(self, part: parts.Hints) -> Iterable[str]:
        self.hints += part.pairs
        return []

    def show_cards(self, part: parts.Cards) -> Iterable[str]:
        for question, _ in part.pairs:
            yield div("card", verbatim(question))

    def back(self) -> Iterable[str]:
        if self.notes:
            yield div("notes", "## Read after measuring", *(div("note", *note) for note in self.notes))
        if self.takeaways:
            yield self.takeaways
        if self.hints:
            yield div("hints", "## Hints", *_definitions(self.hints))


class _Worksheet(_Learner):
    """What is handed out in a room, on two pages: the predictions, a figure, the first exercise, the takeaways."""

    most_room, gap = 12, False

    def text(self) -> str:
        blocks = [f"# {self.notebook.title}", f"*{self.notebook.question}*"]
        boxes = [box for part in self.handout.of(parts.Prediction) for box in self.show_prediction(part)]
        blocks += ["## Predict", div("predictions", *boxes)] if boxes else []
        return "\n\n".join([*blocks, *self.exercise(), div("overleaf", *self.afterwards())])

    def afterwards(self) -> Iterable[str]:
        """What could answer a prediction."""
        rest = dropwhile(lambda part: not isinstance(part, parts.Prediction), self.handout.parts)
        figure = next((part for part in rest if isinstance(part, parts.Figure)), None)
        if figure:
            yield "## Afterwards: what did you see?"
            yield from self.show_figure(figure)
        takeaways = self.notebook.prose.partition("\n## Takeaways\n")[2]
        points = re.findall(r"^- .*(?:\n(?![-\n]).+)*", takeaways, flags=re.M)
        if points:
            yield "## Take away"
            yield "\n".join(points)
        questions = [f"- {verbatim(question)}" for cards in self.handout.of(parts.Cards) for question, _ in cards.pairs]
        if questions:
            yield "## Tomorrow, without looking"
            yield "\n".join(questions)

    def exercise(self) -> Iterable[str]:
        """The first exercise, with what it asks and with room to write."""
        for place, part in enumerate(self.handout.parts):
            if isinstance(part, parts.Exercise):
                asked = next(p.text for p in reversed(self.handout.parts[:place]) if isinstance(p, parts.Prose))
                yield "## Your turn"
                yield re.split(r"^## .*\n", asked, flags=re.M)[-1].strip()
                yield from self.show_exercise(part)
                return


class _Instructor(_Page):
    """With answers, solutions, minutes, and for each fact what is believed and what makes its cell fail."""

    def __init__(self, handout: Handout):
        super().__init__(handout)
        self.facts = read_facts()

    def front(self) -> Iterable[str]:
        yield div(
            "introduction",
            "As the learner's handout, with answers, solutions and evidence. *Evidence* names the fact that a cell "
            "shows (they are in `data/facts`), what is commonly believed, and a change under which the cell fails.",
        )
        if self.notebook.instructor:
            yield div("instructor", "**For the instructor**", self.notebook.instructor)

    def show_prose(self, part: parts.Prose) -> Iterable[str]:
        """Headings with the minutes of their sections."""

        def timed(heading: re.Match) -> str:
            minutes = max(1, round(reading(self.notebook, [section_of(heading[1])]).minutes))
            return f"{heading[0]} [{minutes} min]{{.minutes}}"

        yield re.sub(r"^## (.+)$", timed, part.text, flags=re.M)

    def show_prediction(self, part: parts.Prediction) -> Iterable[str]:
        yield self.prediction(part, lambda option: "ticked" if option == part.answer else "open")

    def show_measured(self, part: parts.Measured) -> Iterable[str]:
        found = part.prediction
        yield div("measured", f"**Prediction {found.number}**, {part.basis}: {verbatim(found.answer)}")

    def show_exercise(self, part: parts.Exercise) -> Iterable[str]:
        yield code(part.source)

    def show_hints(self, part: parts.Hints) -> Iterable[str]:
        yield div("inline-hints", *_definitions(part.pairs))

    def show_solution(self, part: parts.Solution) -> Iterable[str]:
        whole = str(len(part.source.splitlines()) <= 2 * WHOLE).lower()
        title = div("lead", "**Solution**")
        yield div(f"{{.solution whole={whole}}}", title, code(part.source), checklist(part.verdict))

    def show_cards(self, part: parts.Cards) -> Iterable[str]:
        for question, answer in part.pairs:
            yield div("answered", f"**{verbatim(question)}** {verbatim(answer)}")

    def show_claim(self, part: parts.Claim) -> Iterable[str]:
        fact = self.facts.pop(part.id, None)  # some have several cells
        if fact:
            believed = f"*Believed:* {verbatim(fact.belief.rstrip('.'))} ({fact.judged})."
            fails = falsifier(fact.falsifier)
            yield div("evidence", f"**Evidence** `{fact.id}`. {verbatim(fact.statement)} {believed} {fails}".rstrip())


def falsifier(what: Breakage | Edit | None) -> str:
    """What makes a fact's cell fail, in words.

    >>> falsifier(Breakage("torch: zero_grad does nothing"))
    '*Fails if:* zero\\\\_grad does nothing.'
    >>> falsifier(Edit("a", "b"))
    '*Fails if:* `b` replaces `a`.'
    """
    match what:
        case Breakage(name):
            return f"*Fails if:* {verbatim(name.split(': ', 1)[1].rstrip('.'))}."
        case Edit(old, new):
            return f"*Fails if:* `{_on_one_line(new)}` replaces `{_on_one_line(old)}`."
    return ""


def _on_one_line(source: str) -> str:
    return "; ".join(line.strip() for line in source.strip().splitlines())


def _definitions(hints: list[tuple[str, str]]) -> list[str]:
    return [div("hint", f"**{symptom}** {hint}") for symptom, hint in hints]


def _listed(words: list[str]) -> str:
    """
    >>> _listed(["1"]), _listed(["1", "2", "3"])
    ('1', '1, 2 and 3')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
