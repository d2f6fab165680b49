"""A notebook as a list of parts: prose, code, predictions, exercises. The editions decide what to print of them."""

import ast
import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape

from nbformat import NotebookNode

from course_utils.practice.exercises import EXERCISES
from course_utils.publish import PublishError
from course_utils.publish.handouts.screen import for_paper
from course_utils.publish.handouts.syntax import parse
from course_utils.publish.notebook import Notebook, as_course, claims, is_folded, tags, text_of


@dataclass
class Prose:
    text: str


@dataclass
class Code:
    source: str
    spoiler: bool  # its outputs are folded in the notebook: they answer a prediction


@dataclass
class Output:
    text: str
    spoiler: bool


@dataclass
class Table:
    html: str
    rows: list[list[str]]  # the header first
    spoiler: bool


@dataclass
class Figure:
    number: int
    caption: str
    png: bytes
    inches: float
    spoiler: bool


@dataclass
class Filmstrip:
    """A loop that the screen shows line by line: its key frames."""

    loop: str
    head: list[str]
    rows: list[list[str]]  # code in them stands between backquotes
    spoiler: bool


@dataclass
class OnScreen:
    """What paper leaves to the notebook, in a sentence."""

    text: str


@dataclass
class Prediction:
    number: int
    question: str
    options: list[str]
    answer: str = ""


@dataclass
class Measured:
    prediction: Prediction
    basis: str = "measured"  # or "recorded"


@dataclass
class Exercise:
    source: str
    solution: str = ""  # which says how much room an answer needs


@dataclass
class Hints:
    pairs: list[tuple[str, str]]  # symptom, hint


@dataclass
class Solution:
    source: str
    verdict: str


@dataclass
class Cards:
    pairs: list[tuple[str, str]]  # question, answer


@dataclass
class Claim:
    id: str


Part = (
    Prose | Code | Output | Table | Figure | Filmstrip | OnScreen | Prediction | Measured | Exercise | Hints | Solution
    | Cards | Claim
)  # fmt: skip


@dataclass
class Handout:
    notebook: Notebook
    parts: list[Part]

    def of(self, kind: type) -> list:
        """The parts of one kind."""
        return [part for part in self.parts if isinstance(part, kind)]


def take_apart(notebook: Notebook) -> Handout:
    """The parts of an executed notebook, in order.

    Raises:
        PublishError: If it was not executed, holds an error, or asks for a prediction that it never reveals.
    """
    _refuse_errors(notebook)
    reader = _Reader(notebook)
    handout = Handout(notebook, [part for cell in notebook.cells for part in reader.parts(cell)])
    for prediction in handout.of(Prediction):
        if not prediction.answer:
            raise PublishError(f"{notebook.path}: the prediction {prediction.question!r} is never revealed")
    for place, part in enumerate(handout.parts):
        if isinstance(part, Exercise):
            part.solution = next((p.source for p in handout.parts[place:] if isinstance(p, Solution)), "")
    return handout


def _refuse_errors(notebook: Notebook) -> None:
    for place, cell in enumerate(notebook.cells, start=1):
        where = f"{notebook.path}: cell {place}"
        if cell.cell_type == "code" and cell.execution_count is None:
            raise PublishError(f"{where} has not been run; run the notebook first: tests/execute.py {notebook.path}")
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                what = f"{output.get('ename')}: {output.get('evalue')}"
                raise PublishError(f"{where} ends in an error ({what}); fix it and run the notebook again")


class _Reader:
    """Reads a notebook from the top."""

    def __init__(self, notebook: Notebook):
        self.notebook = notebook
        self.asked: list[Prediction] = []
        self.drawn = False  # whether this section has a figure yet
        self.figures = 0

    def parts(self, cell: NotebookNode) -> list[Part]:
        if cell.cell_type == "markdown":
            self.drawn &= not re.search(r"^## ", cell.source, flags=re.M)
            return list(_prose(for_paper(cell.source)))
        if cell.source.startswith("# Set-up"):  # only its imports differ: on paper once is enough
            return [Code(cell.source, spoiler=False)] if self.notebook.name.startswith("00") else []
        judged = [output for output in cell.outputs if as_course(output).get("kind") == "verdict"]
        verdicts = [text_of(output) for output in judged]
        if "solution" in tags(cell):
            printed = [part for output in cell.outputs for part in self.output(output, spoiler=True)]
            return [Solution(cell.source, "\n".join(verdicts)), *printed]
        outputs = [part for output in cell.outputs for part in self.output(output, is_folded(cell, "outputs"))]
        if not outputs and any(as_course(output).get("kind") in ("score", "final-test") for output in cell.outputs):
            return []  # it counts, or asks, on the screen alone
        hints = [_hints(as_course(output)["exercise"]) for output in judged]
        return [*_source(cell, verdicts, outputs), *hints, *outputs, *map(Claim, claims(cell))]

    def output(self, output: NotebookNode, spoiler: bool) -> Iterator[Part]:
        match as_course(output):
            case {"kind": "prediction", "question": question, "options": options}:
                self.asked.append(Prediction(len(self.asked) + 1, question, options))
                yield self.asked[-1]
            case {"kind": "reveal", "question": question, "measured": measured, **rest}:
                yield Measured(self.answered(question, measured), rest.get("basis", "measured"))
            case {"kind": "cards", "cards": cards}:
                yield Cards([(question, answer) for question, answer in cards])
            case {"kind": "explore", "controls": controls}:
                drawn_for = "; ".join(map(_range, controls))
                if not self.drawn and "image/png" in output.data:
                    yield self.figure(output, f"One of those that the notebook draws, for {drawn_for}.", spoiler)
                else:
                    yield OnScreen(f"The notebook draws this for {drawn_for}.")
            case {"kind": "steps", "tracks": tracks, "versions": [_, *changed]}:
                for track in tracks:
                    yield Filmstrip(**track, spoiler=spoiler)
                if changed:
                    yield OnScreen(f"The notebook also has the loop {'; '.join(changed)}.")
            case {"kind": "verdict" | "score" | "final-test"}:
                return  # the first belongs to the exercise, the others to the screen
            case _:
                yield from self.plain(output, spoiler)

    def answered(self, question: str, measured: str) -> Prediction:
        for prediction in self.asked:
            if prediction.question == question and not prediction.answer:
                prediction.answer = measured
                return prediction
        raise PublishError(f"{self.notebook.path}: {measured!r} is revealed, but {question!r} is no open prediction")

    def plain(self, output: NotebookNode, spoiler: bool) -> Iterator[Part]:
        """What the code itself shows: a figure, a table or text."""
        text, html = text_of(output), output.get("data", {}).get("text/html", "")
        if "image/png" in output.get("data", {}):
            yield self.figure(output, output.metadata["image/png"]["alt"], spoiler)
        elif "<table" in html:
            rows = [line.split(" | ") for line in text.splitlines() if " | " in line]
            yield Table(html, rows, spoiler)
        elif text:
            yield Output(text, spoiler)

    def figure(self, output: NotebookNode, caption: str, spoiler: bool) -> Figure:
        self.drawn = True
        self.figures += 1
        inches = output.metadata["image/png"]["width"] / 100
        return Figure(self.figures, caption, base64.b64decode(output.data["image/png"]), inches, spoiler)


def _source(cell: NotebookNode, verdicts: list[str], outputs: list[Part]) -> Iterator[Part]:
    """What paper shows of a cell's code."""
    if verdicts:
        yield Exercise(cell.source)
    elif is_folded(cell, "source") and not outputs:
        what = re.match(r"# (.+)", cell.source)
        yield OnScreen(f"The notebook has more code here: {what[1] if what else 'a cell.'}")
    elif not is_folded(cell, "source") and not _only_predicts(cell.source):
        yield Code(cell.source, is_folded(cell, "outputs"))


def _hints(exercise: str) -> Hints:
    """What `check` shows in a fold when it has named a bug."""
    by_hint: dict[str, list[str]] = {}
    for bug, hint in EXERCISES[exercise].hints.items():
        by_hint.setdefault(hint, []).append(bug)
    return Hints([(f"It says: {' or '.join(bugs)}", hint) for hint, bugs in by_hint.items()])


def _only_predicts(source: str) -> bool:
    """Whether a cell does nothing but ask: its code says no more than its boxes."""
    tree = parse(source)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return all(isinstance(statement, ast.Assign) for statement in tree.body) and called == {"predict"}


def _prose(source: str) -> Iterator[Part]:
    """Prose, with the hints that it holds taken out of their folds."""
    for piece in re.split(r"((?:<details>.*?</details>\s*)+)", source, flags=re.S):
        hints = re.findall(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", piece, flags=re.S)
        if hints:
            yield Hints([(_markdown(symptom), _markdown(hint)) for symptom, hint in hints])
        elif piece.strip():
            yield Prose(piece.strip())


def _markdown(html: str) -> str:
    """The few HTML tags that stand in hints, as Markdown.

    >>> _markdown('Is <code>weight</code> in it? See <a href="05_windows.ipynb">05</a>.')
    'Is `weight` in it? See [05](05_windows.ipynb).'
    """
    html = re.sub(r"<code>(.*?)</code>", r"`\1`", html, flags=re.S)
    html = re.sub(r'<a href="(.*?)">(.*?)</a>', r"[\2](\1)", html, flags=re.S)
    return unescape(html).strip()


def _range(control: dict) -> str:
    """What a slider, or a list to choose from, offers.

    >>> _range({"name": "n", "values": [4, 1, 2]}), _range({"name": "loss", "values": ["mean", "sum"]})
    ('n from 1 to 4', 'loss mean / sum')
    """
    name, values = control["name"], control["values"]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return f"{name} from {min(values)} to {max(values)}"
    return f"{name} {' / '.join(map(str, values))}"
