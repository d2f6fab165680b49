"""A notebook on paper, as Markdown for pandoc: for learners, for a room, for the instructor.

The Markdown says what a thing is (`::: prediction`); how it looks is decided by the templates in
`docs/paper`.
"""

import ast
import base64
import re
from collections.abc import Iterable, Iterator
from html import unescape
from math import ceil

from nbformat import NotebookNode

from notebooks import (
    COURSE,
    Fact,
    Notebook,
    claims,
    displays,
    in_words,
    is_folded,
    read_facts,
    reading,
    section_of,
    tags,
    text_of,
)

LINE = "\u2581"  # the template draws one alone on its line as a line to write on, and several as a blank of that width
IMAGE = r'<img width="(\d+)" alt="([^"]*)" src="data:image/png;base64,([^"]*)">'  # in a fold
HAND = 48  # letters that somebody writes by hand across a page
MORE_CODE = "The notebook has more code here: "
FOR_LEARNERS = (
    "Tick a box before you read on. Code that answers a prediction is printed without its output and its assertions; "
    "run the notebook to see them. What the answers mean stands at the end."
)
FOR_INSTRUCTORS = (
    "As the learner's handout, with answers, solutions and evidence. *Evidence* names the fact that a cell shows (they "
    "are in `data/facts`), what is commonly believed, and a change under which the cell fails."
)


class Handout:
    """A notebook, read from the top to the end for one kind of reader.

    What follows a revealed answer, up to the next heading, prediction or exercise, explains it. For
    learners that is kept for the end, as a note.

    Args:
        book: The notebook.
        answers: Whether it is for the instructor, with answers, solutions and evidence.
        most_room: How many lines to write on an exercise may have.
    """

    def __init__(self, book: Notebook, answers: bool = False, most_room: int = 22):
        self.book, self.answers, self.most_room = book, answers, most_room
        self.body: list[str] = []
        self.notes: list[list[str]] = []
        self.predictions: list[str] = []
        self.drawings: list[str] = []  # those that come after a prediction
        self.asked_about: list[str] = []  # those right before one
        self.exercise = ""  # the first one, with the text that asks for it
        self.figures: dict[str, bytes] = {}  # PNG files by the names that the text calls them by
        self._into = self.body
        self._waiting = 0  # predictions that aren't revealed yet
        self._later: list[str] = []  # what would answer them where it stands
        self._asked = ""  # the text before a cell
        self._facts = read_facts() if answers else {}
        self._answers = {shown["question"]: shown["measured"] for shown in book.displays("reveal")}
        for cell in book.cells[1:]:
            if cell.cell_type == "code":
                self._run(cell)
            elif "screen" not in tags(cell):  # what only a screen can follow
                self._read(for_paper(cell.source))

    def markdown(self) -> str:
        """The learner's edition or, with answers, the instructor's."""
        title = self.book.cells[0].source
        if self.answers:
            notes = [div("instructor", "**For the instructor**", self.book.instructor)] if self.book.instructor else []
            return "\n\n".join([title, div("introduction", FOR_INSTRUCTORS), *notes, *self.body])
        back = ["## Read after measuring", *(div("note", *note) for note in self.notes)] if self.notes else []
        return "\n\n".join([title, div("introduction", FOR_LEARNERS), *self.body, *back, self.takeaways])

    def worksheet(self) -> str:
        """One sheet for a room: in front what to predict and to write, overleaf the answers."""
        boxes = div("predictions", f"\n\n{raw('][')}\n\n".join([*self.asked_about, *self.predictions]))
        front = [f"# {self.book.title}", f"*{self.book.question}*", boxes]
        back = ["## Afterwards: what did you see?", self.drawings[0]] if self.drawings else []
        points = re.findall(r"^- .*(?:\n(?![-\n]).+)*", self.takeaways, flags=re.M)
        questions = [f"- {verbatim(question)}" for question, _ in self.book.cards]
        for heading, found in (("Take away", points), ("Tomorrow, without looking", questions)):
            back += [f"## {heading}", "\n".join(found)] if found else []
        return "\n\n".join([*front, "## Your turn", self.exercise, div("overleaf", *back)])

    @property
    def takeaways(self) -> str:
        found = re.search(r"^## Takeaways\n.*?(?=^## |\Z)", self.book.prose, flags=re.M | re.S)
        return found[0].strip() if found else ""

    def _read(self, prose: str) -> None:
        self._asked = re.split(r"^## .*\n", prose, flags=re.M)[-1].strip()
        for piece in re.split(r"^(?=##+ )", prose, flags=re.M):
            heading = re.match(r"##+ (.+)", piece)
            if heading:
                self._into = self.body
            if self.answers and piece.startswith("## "):
                minutes = max(1, round(reading(self.book, [section_of(heading[1])]).minutes))
                piece = piece.replace(heading[0], f"{heading[0]} [{minutes} min]{{.minutes}}", 1)
            if self.answers or not piece.startswith("## Takeaways"):  # which learners get at the end
                self._into.append(piece.strip())

    def _run(self, cell: NotebookNode) -> None:
        kinds = {shown["kind"] for shown in displays(cell)}
        if "solution" in tags(cell):
            if self.answers:
                self._solution(cell)
            return
        if kinds & {"prediction", "reveal", "verdict"}:
            self._into = self.body
        if "verdict" in kinds:
            self._exercise(cell)
            return
        if cell.source.startswith("# Set-up") and not self.book.name.startswith("00"):
            return  # only its imports differ: on paper once is enough
        spoiler = is_folded(cell, "outputs") and not self.answers
        if not is_folded(cell, "source"):
            self._into.append(code(without_answers(cell.source) if spoiler else cell.source))
        elif not cell.outputs:
            what = re.match(r"# (.+)", cell.source)
            self._into.append(div("screen", verbatim(MORE_CODE + (what[1] if what else "a cell."))))
        if "reveal" in kinds:
            self._reveal(cell, [shown for shown in displays(cell) if shown["kind"] == "reveal"])
        if not spoiler or self._into is not self.body:
            for output in cell.outputs:
                self._into.extend(self._output(output))
        for claim in claims(cell) if self.answers else ():
            if fact := self._facts.pop(claim, None):  # some have several cells
                self._into.append(evidence(fact))

    def _reveal(self, cell: NotebookNode, revealed: list[dict]) -> None:
        self._waiting -= len(revealed)
        numbers = [list(self._answers).index(shown["question"]) + 1 for shown in revealed]
        for number, shown in zip(numbers, revealed, strict=True):
            answer = verbatim(shown["measured"]) if self.answers else "[]{.blank}"
            self.body.append(div("measured", f"**Prediction {number}**, {shown.get('basis', 'measured')}: {answer}"))
        if not self.answers:
            which = " and ".join(map(str, numbers))
            lead = div("lead", f"**Note {len(self.notes) + 1}**, on prediction {which}")
            self.notes.append([lead, *self._later])
            self._into, self._later = self.notes[-1], []
            self.body.append(div("pointer", f"What it means: note {len(self.notes)} at the end."))
        if explained := [shown["because"] for shown in revealed if "because" in shown]:
            self._into += [*map(self._figure, cell.outputs), *map(for_paper, explained)]
            self._into = self.body  # what follows doesn't explain it

    def _exercise(self, cell: NotebookNode) -> None:
        (verdict,) = [shown for shown in displays(cell) if shown["kind"] == "verdict"]
        if self.answers:
            self.body.append(code(cell.source))
            return
        checked = f'check("{verdict["exercise"]}"'
        solution = next(c.source for c in self.book.code if "solution" in tags(c) and checked in c.source)
        stub = div("exercise", code(with_room(cell.source, solution, self.most_room), "stub"))
        self.exercise = self.exercise or f"{self._asked}\n\n{stub}"
        self.body.append(stub)

    def _solution(self, cell: NotebookNode) -> None:
        verdict = [text_of(output) for output in cell.outputs if COURSE in output.get("data", {})]
        self._into.append(div("solution", div("lead", "**Solution**"), code(cell.source), verbatim("\n".join(verdict))))
        for output in cell.outputs:
            self._into.extend(self._output(output))

    def _output(self, output: NotebookNode) -> Iterator[str]:
        data = output.get("data", {})
        match data.get(COURSE, {}):
            case {"kind": "prediction", "question": question, "options": options}:
                self._waiting += 1
                self.asked_about += [last for last in self.body[-1:] if last.startswith("::::: drawing")]
                self.predictions.append(self._prediction(question, options))
                yield self.predictions[-1]
            case {"kind": "cards", "cards": cards}:
                for question, answer in cards:
                    asked = verbatim(question)
                    yield div("answered", f"**{asked}** {verbatim(answer)}") if self.answers else div("card", asked)
            case {"kind": "loop"}:
                yield code(text_of(output), "output")
            case {"kind": "steps", "rows": rows}:
                if self._waiting and not self.answers:
                    self._later.append(table(rows))
                else:
                    yield table(rows)
            case {"kind": _}:
                return  # a reveal and a verdict are printed with their cell, and a score is for the screen
            case _ if "image/png" in data:
                yield self._figure(output)
            case _ if "<table" in data.get("text/html", ""):
                yield code(data["text/html"], "{=html}")
            case _ if text := text_of(output):
                yield code(text, "output")

    def _prediction(self, question: str, options: list[str]) -> str:
        answer = self._answers[question] if self.answers else None
        boxes = (f"- []{{.{'ticked' if option == answer else 'open'}}} {verbatim(option)}" for option in options)
        number = list(self._answers).index(question) + 1
        return div("prediction", f"**Prediction {number}.** {verbatim(question)}", "\n".join(boxes))

    def _figure(self, output: NotebookNode) -> str:
        """The figure that an output is, or that it holds; nothing if there is none."""
        image = re.search(IMAGE, output.data.get("text/markdown", ""))
        if "image/png" in output.data:
            about, png = output.metadata["image/png"], output.data["image/png"]
            width, alt = about["width"], about["alt"]
        elif image:
            width, alt, png = int(image[1]), unescape(image[2]), image[3]
        else:
            return ""
        name, caption = f"figure-{len(self.figures) + 1}.png", verbatim(alt)
        self.figures[name] = base64.b64decode(png)
        picture = f"![{caption}]({name}){{width={width / 100:g}in}}"
        drawing = div("drawing", picture, div("caption", f"**Figure {len(self.figures)}.** {caption}"))
        self.drawings += [drawing] if self.predictions else []
        return drawing


def evidence(fact: Fact) -> str:
    """A fact, what is believed instead, and what makes its cell fail."""
    believed = f"*Believed:* {verbatim(fact.belief.rstrip('.'))} ({in_words(fact.verdict)})."
    match fact.falsifier:
        case {"breakage": name}:
            fails = f"*Fails if:* {verbatim(name.split(': ', 1)[1].rstrip('.'))}."
        case {"old": old, "new": new}:
            old, new = ("; ".join(line.strip() for line in source.strip().splitlines()) for source in (old, new))
            fails = f"*Fails if:* `{new}` replaces `{old}`."
        case _:
            fails = ""
    return div("evidence", f"**Evidence** `{fact.id}`. {verbatim(fact.statement)} {believed} {fails}".rstrip())


def without_answers(source: str) -> str:
    """A cell's code without what it reveals and asserts.

    >>> print(without_answers("n = count()\\nguess.reveal(n)\\nassert n == 8"))
    n = count()
    guess.reveal(...)
    """
    lines = source.splitlines()
    for node in sorted(ast.walk(ast.parse(source)), key=lambda node: -getattr(node, "lineno", 0)):
        match node:
            case ast.Assert():
                instead = ["..."] if node.col_offset else []  # a block may hold nothing else
            case ast.Expr(ast.Call(ast.Attribute(attr="reveal") as reveal)):
                instead = [f"{ast.unparse(reveal)}(...)"]
            case _:
                continue
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + line for line in instead]
    return "\n".join(lines).rstrip()


def with_room(stub: str, solution: str, most: int) -> str:
    """The stub of an exercise with room for what the solution takes where its dots stand.

    >>> stub = "def f(a):\\n    ...  # add\\n\\n\\n_ = check('f', f)"
    >>> print(with_room(stub, "def f(a):\\n    return a + 1", 22))
    def f(a):
        # add
        ▁
        ▁
        ▁
    >>> stub = "x = {'a': ...}\\n_ = check('x', x)"
    >>> print(with_room(stub, "x = {'a': 1}", 22).replace(10 * LINE, "_"))
    x = {'a': _}
    ▁
    ▁
    ▁
    """
    stub = re.sub(r"\n+_ = check\(.*\Z", "", stub, flags=re.S)  # on paper nothing checks it
    given = {line.strip() for line in stub.splitlines()}
    answer = [line.partition("  #")[0].strip() for line in re.split(r"^assert ", solution, flags=re.M)[0].splitlines()]
    by_hand = sum(ceil(len(line) / HAND) for line in answer if line not in given and line[:1] != "#")
    hole = re.compile(r"^( *)(?:return )?(?:\.\.\.|pass|None)(?: +(#.*))?$", flags=re.M)
    lines = max(3, ceil(min(most, by_hand) / max(1, len(hole.findall(stub)))))

    def ruled(found: re.Match) -> str:
        indent, comment = found.groups()
        return "\n".join(indent + line for line in [comment] * bool(comment) + [LINE] * lines)

    if hole.search(stub):
        return hole.sub(ruled, stub)
    return re.sub(r'(?<=[:=] )(?:\.\.\.|""|None)(?=[,}\s])', 10 * LINE, stub) + f"\n{LINE}" * 3


def for_paper(text: str) -> str:
    """Prose with its folds open.

    >>> for_paper("<details>\\n<summary>What is SGD?</summary>\\n\\nAn optimizer.\\n\\n</details>")
    '*What is SGD?* An optimizer.'
    """
    return re.sub(r"<details>\n<summary>(.*?)</summary>\s+(.*?)\s+</details>", r"*\1* \2", text, flags=re.S).strip()


def div(kind: str, *blocks: str) -> str:
    return "\n\n".join([f"::::: {kind}", *blocks, ":::::"])


def raw(typst: str) -> str:
    return f"```{{=typst}}\n{typst}\n```"


def code(source: str, kind: str = "python") -> str:
    source = re.sub(r"  # fmt: skip$", "", source, flags=re.M)  # for a formatter, not for readers
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", source)), default=0))
    return f"{fence}{kind}\n{source}\n{fence}"


def table(rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown, with a head. Code in its other rows stands between backquotes."""
    head, *body = rows
    lines = [head, ["---" for _ in head], *(map(coded, row) for row in body)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def coded(text: str) -> str:
    """Text in which nothing but the code between backquotes is markup.

    >>> print(coded("`a | b` sets w[0]"))
    `a \\| b` sets w\\[0\\]
    """
    pieces = enumerate(text.split("`"))  # code is every second one
    return "`".join(piece.replace("|", "\\|") if index % 2 else verbatim(piece) for index, piece in pieces)


def verbatim(text: str) -> str:
    """Text in which nothing is markup.

    >>> print(verbatim("2 * w < p.grad[0], reduction='none'"))
    2 \\* w \\< p.grad\\[0\\], reduction=\\'none\\'
    """
    text = re.sub(r"([\\`*_{}\[\]<>#$|~^:])", r"\\\1", text)
    text = re.sub(r"(?<=[=(])(['\"])(\w*)\1", r"\\\1\2\\\1", text)  # code's quotes are straight
    return text.replace("\n", "\\\n")
