"""Reads a notebook as a list of parts: prose, code, predictions, exercises. What is printed of them is another room's.

Needs the standard library alone: a notebook is a file of JSON.
"""

import ast
import base64
import json
import re
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path


class HandoutError(Exception):
    """The handouts cannot be built; the message says why, and what to do."""


@dataclass
class Part:
    """A piece of a notebook. `kind` says which of the other fields count."""

    kind: str
    text: str = ""  # prose, source or output
    answer: str = ""  # of a prediction; the verdict on a solution
    options: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)  # cards: question, answer; hints: symptom, hint
    rows: list[tuple[str, ...]] = field(default_factory=list)  # of a table, the header first
    number: int = 0  # of a prediction; lines to leave for an exercise
    name: str = ""  # of a prediction, in the code
    png: bytes = b""
    inches: float = 0.0
    spoiler: bool = False  # folded in the notebook: it answers a prediction


@dataclass
class Notebook:
    """A notebook's parts in order, and how many minutes each of its sections takes."""

    name: str
    title: str
    minutes: int
    parts: list[Part]
    sections: dict[str, int]
    notes: str  # for the instructor


def read(path: Path) -> Notebook:
    """Reads an executed notebook.

    **Raises:** `HandoutError` if it is no notebook, was not executed or holds an error.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            cell["source"] = "".join(cell["source"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise HandoutError(f"{path} cannot be read as a notebook: {problem}") from problem
    _refuse_errors(path, cells)
    title = re.match(r"# (.+)\n\n\*\*(\d+) minutes", cells[0]["source"] if cells else "")
    if not title:
        raise HandoutError(f"{path}: the first cell must hold a title and a line '**N minutes ...'")
    notes = "\n\n".join(_unfold(cell["source"]) for cell in cells if "instructor" in _tags(cell))
    sections = {name: int(minutes) for name, minutes in re.findall(r"^\| ([^|]+?) \| (\d+) \|$", notes, flags=re.M)}
    parts = [part for cell in cells if "instructor" not in _tags(cell) for part in _parts(cell)]
    parts = _without_repeated_pictures(parts)
    _join_answers(path, parts)
    _leave_room(parts)
    return Notebook(path.stem, title[1], int(title[2]), parts, sections, notes)


def _without_repeated_pictures(parts: list[Part]) -> list[Part]:
    """The first picture of sliders is a figure where its section has no other: most repeat the one before them."""
    kept, drawn = [], False
    for part in parts:
        if part.kind == "prose" and re.search(r"^## ", part.text, flags=re.M):
            drawn = False
        drawn |= part.kind == "figure"
        if part.kind == "first picture":
            if drawn:
                continue
            part.kind = "figure"
        kept.append(part)
    return kept


def _tags(cell: dict) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def _hidden(cell: dict, part: str) -> bool:
    return cell.get("metadata", {}).get("jupyter", {}).get(f"{part}_hidden", False)


def _refuse_errors(path: Path, cells: list[dict]) -> None:
    for place, cell in enumerate(cells, start=1):
        if cell["cell_type"] == "code" and cell.get("execution_count") is None:
            raise HandoutError(
                f"{path}: cell {place} has not been run; run the notebook first: tests/execute.py {path}"
            )
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                what = f"{output.get('ename')}: {output.get('evalue')}"
                raise HandoutError(
                    f"{path}: cell {place} ends in an error ({what}); mend it and run the notebook again"
                )


def _unfold(source: str) -> str:
    """A folded block without its fold."""
    return re.sub(r"<details>\s*<summary>.*?</summary>(.*?)</details>", r"\1", source, flags=re.S).strip()


def _parts(cell: dict) -> list[Part]:
    if cell["cell_type"] == "markdown":
        return _prose(cell["source"])
    source = cell["source"]
    outputs = [part for output in cell["outputs"] for part in _output(output, _hidden(cell, "outputs"))]
    if any(part.kind != "screen" for part in outputs):  # the line of progress below cards
        outputs = [part for part in outputs if part.kind != "screen"]
    _name("prediction", outputs, re.findall(r"^(\w+) = predict\(", source, flags=re.M))
    _name("measured", outputs, re.findall(r"(\w+)\.reveal\(", source))
    claims = [Part("claim", tag.removeprefix("claim:")) for tag in _tags(cell) if tag.startswith("claim:")]
    if source.startswith("# Set-up"):
        return [Part("set-up", source)]
    if "solution" in _tags(cell):
        return [Part("solution", source, answer="\n".join(part.text for part in outputs if part.kind == "verdict"))]
    if any(part.kind == "verdict" for part in outputs):
        return [Part("exercise", source), *(part for part in outputs if part.kind != "verdict"), *claims]
    if _hidden(cell, "source") and not outputs:
        what = re.match(r"# (.+)", source)
        return [Part("screen", f"Folded in the notebook: {what[1] if what else 'a cell of code.'}"), *claims]
    if _hidden(cell, "source") or _only_predicts(source):
        return [*outputs, *claims]
    return [Part("code", source, spoiler=_hidden(cell, "outputs")), *outputs, *claims]


def _name(kind: str, outputs: list[Part], names: list[str]) -> None:
    """Gives predictions the names that the code calls them by, where the code shows as many as there are."""
    parts = [part for part in outputs if part.kind == kind]
    if len(parts) == len(names):
        for part, name in zip(parts, names, strict=True):
            part.name = name


def _only_predicts(source: str) -> bool:
    """Whether a cell does nothing but ask: its code says no more than its boxes."""
    calls = [
        node
        for statement in ast.parse(source).body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assigns = all(isinstance(statement, ast.Assign) for statement in ast.parse(source).body)
    return assigns and bool(calls) and all(call.func.id == "predict" for call in calls)


def _prose(source: str) -> list[Part]:
    """Prose, with the hints that it holds taken out of their folds."""
    parts = []
    for piece in re.split(r"(<details>.*?</details>)", source, flags=re.S):
        hint = re.match(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", piece, flags=re.S)
        if hint:
            pair = (_markdown(hint[1]), _markdown(hint[2]))
            if parts and parts[-1].kind == "hints":
                parts[-1].pairs.append(pair)
            else:
                parts.append(Part("hints", pairs=[pair]))
        elif piece.strip():
            parts.append(Part("prose", piece.strip()))
    return parts


def _markdown(html: str) -> str:
    """The few HTML tags that stand in hints, as markdown.

    >>> _markdown('Is <code>weight</code> in it? See <a href="03b_windows.ipynb">03b</a>.')
    'Is `weight` in it? See [03b](03b_windows.ipynb).'
    """
    html = re.sub(r"<code>(.*?)</code>", r"`\1`", html, flags=re.S)
    html = re.sub(r'<a href="(.*?)">(.*?)</a>', r"[\2](\1)", html, flags=re.S)
    return unescape(html).strip()


def _output(output: dict, spoiler: bool) -> list[Part]:
    data = output.get("data", {})
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n")
    html = "".join(data.get("text/html", ""))
    png = base64.b64decode("".join(data.get("image/png", "")))
    inches = output.get("metadata", {}).get("image/png", {}).get("width", 750) / 100
    if text.startswith("Sliders: "):
        first = Part("first picture", "The sliders at their first values.", png=png, inches=inches, spoiler=spoiler)
        return [first, Part("sliders", text.removesuffix(" They move when this cell has been run."))]
    if png:
        return [Part("figure", text.removeprefix("Figure: "), png=png, inches=inches, spoiler=spoiler)]
    if text.startswith("Predict: "):
        question, *options = text.removeprefix("Predict: ").split("\n  [ ] ")
        return [Part("prediction", question, options=options)]
    if measured := re.match(r"Measured: (.*)\. \(You made no prediction", text):
        return [Part("measured", answer=measured[1])]
    if text.startswith("Nothing answered yet here."):
        return [Part("screen", "On screen. A line that counts what you have answered.")]
    if text.startswith("# Final test"):
        return [
            Part("screen", "On screen. The questions of the test; run the cell again with another seed for others.")
        ]
    if text.startswith("Q: "):
        return [Part("cards", pairs=re.findall(r"^Q: (.*)\nA: (.*)$", text, flags=re.M))]
    if html and re.match(r"(Right|Not done yet|Not yet right)", text):
        return [Part("verdict", text)]
    if "<table" in html:
        rows = [tuple(row.split(" | ")) for row in text.splitlines() if " | " in row]
        return [Part("table", html, rows=rows, spoiler=spoiler)]
    return [Part("output", text, spoiler=spoiler)] if text else []


def _join_answers(path: Path, parts: list[Part]) -> None:
    """Numbers the predictions, and gives each the answer that was measured later.

    The code names the guess that it reveals; where a loop reveals several, they come in the order of their questions.
    """
    open_ones: list[Part] = []
    asked = 0
    for part in parts:
        if part.kind == "prediction":
            asked += 1
            part.number = asked
            open_ones.append(part)
        if part.kind == "measured":
            fits = [guess for guess in open_ones if part.answer in guess.options]
            mine = next((guess for guess in fits if part.name and guess.name == part.name), next(iter(fits), None))
            if mine is None:
                raise HandoutError(f"{path}: {part.answer!r} was measured, and no open prediction has it as an option")
            open_ones.remove(mine)
            part.number, part.text, mine.answer = mine.number, mine.text, part.answer
    if open_ones:
        raise HandoutError(f"{path}: the prediction {open_ones[0].text!r} is never compared with what was measured")


def _leave_room(parts: list[Part]) -> None:
    """An exercise gets as many lines to write on as its solution has, and a few more."""
    solutions = [part for part in parts if part.kind == "solution"]
    for exercise, solution in zip((part for part in parts if part.kind == "exercise"), solutions, strict=False):
        exercise.number = len(solution.text.splitlines()) + 3
