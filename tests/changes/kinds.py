"""The kinds of change: each finds all places of the course where it can be made, as changes to one file.

A change to a cell's code is also made in the outputs that show the same text, as if the cell had been executed again:
what shows the old text beside the new one would be noticed by nbval alone.
"""

import ast
import json
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
KINDS: dict[str, Callable[[], Iterator["Change"]]] = {}


@dataclass(frozen=True)
class Change:
    """A text of one file that becomes another."""

    path: str
    what: str
    make: Callable[[], str]
    runs: bool = False  # whether it changes what a notebook runs or shows, or a falsifier

    @property
    def area(self) -> str:
        """The first folder of its path."""
        return self.path.partition("/")[0]

    @property
    def stem(self) -> str:
        """The notebook to which the file belongs, or the file's name."""
        return Path(self.path).stem


def kind(name: str):
    def register(find: Callable) -> Callable:
        KINDS[name] = find
        return find

    return register


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def books() -> dict[str, nbformat.NotebookNode]:
    names = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    return {f"notebooks/{name}": nbformat.reads(text_of(f"notebooks/{name}"), as_version=4) for name in names}


def copied(path: str) -> nbformat.NotebookNode:
    """A notebook that may be changed."""
    return nbformat.from_dict(json.loads(json.dumps(books()[path])))


def cells(wanted: str) -> Iterator[tuple[str, int, nbformat.NotebookNode]]:
    for path, book in books().items():
        for place, cell in enumerate(book.cells):
            if cell.cell_type == wanted:
                yield path, place, cell


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def shown(cell, kind: str) -> Iterator[dict]:
    for output in cell.get("outputs", []):
        stored = output.get("data", {}).get("application/vnd.course+json", {})
        if stored.get("kind") == kind:
            yield stored


def in_text(path: str, start: int, end: int, new: str) -> Change:
    """Puts new text between two places of a file."""
    text = text_of(path)
    return Change(path, f"{text[start:end]!r} -> {new!r}", lambda: text[:start] + new + text[end:])


def in_cell(path: str, place: int, start: int, end: int, new: str, executed: tuple[str, str] = ("", "")) -> Change:
    """Puts new text between two places of a cell's source; `executed` is what its outputs show before and after."""
    old = books()[path].cells[place].source[start:end]

    def make() -> str:
        book = copied(path)
        cell = book.cells[place]
        cell.source = cell.source[:start] + new + cell.source[end:]
        if executed[0]:
            cell.outputs = [nbformat.from_dict(_replaced(output, *executed)) for output in cell.outputs]
        return nbformat.writes(book) + "\n"

    around = books()[path].cells[place].source[max(0, start - 30) : end + 20].replace("\n", " ")
    is_code = books()[path].cells[place].cell_type == "code"
    return Change(path, f"{old!r} -> {new!r} in cell {place}: ...{around}...", make, is_code)


def _replaced(value, old: str, new: str):
    if isinstance(value, str):
        return value.replace(old, new).replace(escape(old), escape(new))
    if isinstance(value, dict):
        return {key: inner if "image" in key else _replaced(inner, old, new) for key, inner in value.items()}
    return [_replaced(inner, old, new) for inner in value] if isinstance(value, list) else value


def another(number: str) -> str:
    """A number with another last digit."""
    digit = int(number[-1])
    return f"{number[:-1]}{digit + 1 if digit < 9 else 8}"


_NO_PROSE = r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)]*\)|<[^>]*>"
_LABELS = r"^\*\*[^*\n]*minutes[^*\n]*\*\*.*?difficulty \d/5|\b[Ss]teps? \d+|[Nn]otebooks? \d+\w?|\[[^\]]*\]"


def prose(text: str, also: str = r"(?!)") -> str:
    """Text in which all that is no prose, and what else is named, is blank."""
    return re.sub(f"{_NO_PROSE}|{also}", lambda gone: " " * len(gone[0]), text, flags=re.S | re.M)


def of_matches(wanted: str, pattern: str, new: Callable[[re.Match], str], plain: Callable[[str], str] = str):
    """A change for each match of a pattern in the cells of a type: its group 1 becomes other text."""
    for path, place, cell in cells(wanted):
        for found in re.finditer(pattern, plain(cell.source), flags=re.M):
            if (text := new(found)) != found[1]:
                yield in_cell(path, place, *found.span(1), text)


# Prose


@kind("a number in prose after a cell")
def _():
    for path, place, cell in cells("markdown"):
        if "instructor" in tags(cell) or books()[path].cells[max(0, place - 1)].cell_type != "code":
            continue
        after = re.split(r"^## ", cell.source, flags=re.M)[0]
        for found in re.finditer(r"(?<![\w.#/])\d[\d,]*(?:\.\d+)?(?![\w/])", prose(after, _LABELS)):
            number = found[0].rstrip(",")
            yield in_cell(path, place, found.start(), found.start() + len(number), another(number))


@kind("a unit in prose")
def _():
    units = {"MB": "GB", "GB": "MB", "MiB": "GiB", "GiB": "MiB", "bytes": "bits", "bits": "bytes", "kB": "MB"}
    units |= {"seconds": "milliseconds", "milliseconds": "seconds", "percent": "per mille", "%": "‰"}
    return of_matches(
        "markdown", rf"\d ?({'|'.join(units)})(?!\w)", lambda found: units[found[1]], lambda text: prose(text)
    )


@kind("a link's target: another notebook")
def _():
    names = [Path(path).stem for path in books()]

    def next_one(found):
        return names[(names.index(found[1]) + 1) % len(names)] if found[1] in names else found[1]

    return of_matches("markdown", r"\]\((\w+)\.ipynb", next_one)


ISSUE = r"\[([^\]]*#)(\d+)\]\((https://github\.com/[^)]*/(?:issues|pull)/)(\d+)"


@kind("a link's text, not its target")
def _():
    return of_matches("markdown", r"\[[^\]]*#(\d+)\]\(https", lambda found: another(found[1]))


@kind("the number of a cited issue, text and target")
def _():
    for path, place, cell in cells("markdown"):
        for found in re.finditer(ISSUE, cell.source):
            new = another(found[2])
            yield in_cell(path, place, *found.span(), f"[{found[1]}{new}]({found[3]}{new}")


@kind("a reference to a step that isn't there")
def _():
    for path, place, cell in cells("markdown"):
        for found in re.finditer(r"(?<!^## )\bSteps? (\d+)\b", cell.source, flags=re.M):
            if place and "instructor" not in tags(cell):
                yield in_cell(path, place, *found.span(1), "1" + found[1].zfill(2))


@kind("the number of a step's heading")
def _():
    return of_matches("markdown", r"^## Step (\d+)", lambda found: another(found[1]))


@kind("a sign in a formula")
def _():
    for path, place, cell in cells("markdown"):
        for formula in re.finditer(r"\$\$.+?\$\$|\$[^$\n]+\$", cell.source, flags=re.S):
            for sign in re.finditer(r"[+-]", formula[0]):
                start = formula.start() + sign.start()
                yield in_cell(path, place, start, start + 1, "-" if sign[0] == "+" else "+")


# Cells


def strings(cell, of: str) -> Iterator[tuple[int, int, str]]:
    """The place and the text of each string, of one piece, in the calls of a function."""
    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == of:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield *span(cell.source, inner), inner.value


def span(source: str, node: ast.AST) -> tuple[int, int]:
    lines = source.encode().splitlines(keepends=True)

    def place(line, column):
        return len((b"".join(lines[: line - 1]) + lines[line - 1][:column]).decode())

    return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)


@kind("a number in a figure's caption")
def _():
    for path, place, cell in cells("code"):
        for start, end, text in strings(cell, "show"):
            for number in re.findall(r"\b\d+\b", text):
                source = cell.source[start:end]
                at = source.find(number)
                if at >= 0 and len(text) > 20:
                    new = text.replace(number, another(number), 1)
                    yield in_cell(
                        path, place, start + at, start + at + len(number), another(number), (text.strip(), new.strip())
                    )


@kind("an assertion: == becomes `is not None`")
def _():
    for path, place, cell, test in asserted():
        if isinstance(test, ast.Compare) and all(isinstance(op, ast.Eq) for op in test.ops):
            yield in_cell(path, place, *span(cell.source, test), f"({ast.unparse(test.left)}) is not None")


@kind("an assertion's tolerance: 1e-12 becomes 1e-2")
def _():
    for path, place, cell, test in asserted():
        for number in ast.walk(test):
            if isinstance(number, ast.Constant) and isinstance(number.value, float) and 0 < number.value < 1e-8:
                yield in_cell(path, place, *span(cell.source, number), "1e-2")


def asserted() -> Iterator[tuple]:
    """Every condition that is asserted in a cell that shows a fact."""
    for path, place, cell in cells("code"):
        if any(tag.startswith("claim:") for tag in tags(cell)):
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Assert):
                    yield path, place, cell, node.test


@kind("an exercise's stub that passes")
def _():
    for path, place, cell in cells("code"):
        stubs = books()[path].cells[max(0, place - 1)]
        if "solution" in tags(cell) and list(shown(stubs, "verdict")) and "find-the-bug" not in tags(stubs):

            def make(path=path, place=place, cell=cell) -> str:
                book = copied(path)
                solved = cell.source.removeprefix("# Solution\n").replace(", scored=False", "")
                book.cells[place - 1].source = re.sub(r"assert (.*)\.passed", r"_ = \1", solved)
                book.cells[place - 1].outputs = book.cells[place].outputs
                return nbformat.writes(book) + "\n"

            yield Change(path, f"the stub in cell {place - 1} is the solution", make, runs=True)


@kind("the options of a prediction, without the measured one")
def _():
    measured = {
        reveal["question"]: reveal["measured"] for _, _, cell in cells("code") for reveal in shown(cell, "reveal")
    }
    for path, place, cell in cells("code"):
        for asked in shown(cell, "prediction"):
            option = measured[asked["question"]]
            for start, end, text in strings(cell, "predict"):
                if text == option:
                    yield in_cell(path, place, start, end, '"something else"', (text, "something else"))


# Outputs and answers


@kind("a digit in a stored output")
def _():
    for path, place, cell in cells("code"):
        if "nbval-ignore-output" in tags(cell):
            continue
        for number, output in enumerate(cell.outputs):
            for found in re.finditer(r"\d+", output.get("text", "")):

                def make(path=path, place=place, number=number, found=found) -> str:
                    book = copied(path)
                    changed = book.cells[place].outputs[number]
                    changed.text = changed.text[: found.start()] + another(found[0]) + changed.text[found.end() :]
                    return nbformat.writes(book) + "\n"

                yield Change(path, f"{found[0]} -> {another(found[0])} in the output of cell {place}", make, runs=True)


@kind("a revealed answer")
def _():
    options = {
        asked["question"]: asked["options"] for _, _, cell in cells("code") for asked in shown(cell, "prediction")
    }
    for path, place, cell in cells("code"):
        calls = [
            node
            for node in ast.walk(ast.parse(cell.source))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".reveal")
        ]
        reveals = list(shown(cell, "reveal"))
        if len(calls) == len(reveals) == 1:
            (call,), (reveal,) = calls, reveals
            other = next(option for option in options[reveal["question"]] if option != reveal["measured"])
            executed = (reveal["measured"], other)
            yield in_cell(path, place, *span(cell.source, call.args[0]), f"str({other!r})", executed)


@kind("a recall card's answer")
def _():
    """Its number, or its Yes or No."""
    for path, place, cell in cells("code"):
        for stored in shown(cell, "cards"):
            for _, answer in stored["cards"]:
                found = re.search(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])|^(?:No|Yes)\b", answer)
                at = cell.source.find(answer)
                if found and at >= 0:
                    new = {"No": "Yes", "Yes": "No"}.get(found[0]) or another(found[0])
                    whole = answer[: found.start()] + new + answer[found.end() :]
                    yield in_cell(path, place, at + found.start(), at + found.end(), new, (answer, whole))


# Hints and judges

PRACTICE = "course_utils/practice"


def judges() -> Iterator[str]:
    for path in sorted((ROOT / PRACTICE / "exercises").glob("nb*.py")):
        yield path.relative_to(ROOT).as_posix()


def hints() -> Iterator[tuple[str, ast.Constant, ast.expr]]:
    """The name and the text of each hint of an exercise."""
    for path in judges():
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.keyword) and node.arg == "hints" and isinstance(node.value, ast.Dict):
                for name, text in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(name, ast.Constant) and isinstance(text, ast.Constant):
                        yield path, name, text


@kind("a hint for a name that its judge can't give")
def _():
    for path, name, _ in hints():
        yield in_text(path, *span(text_of(path), name), f'"{name.value}s"')


@kind("an <a href> in a hint")
def _():
    for path, _, text in hints():
        link = 'See <a href="https://docs.pytorch.org">the documentation</a>.'
        yield in_text(path, *span(text_of(path), text), repr(f"{text.value.rsplit('. ', 1)[0].rstrip('.?')}? {link}"))


@kind("a judge's tolerance becomes 1e-2")
def _():
    places = [f"{PRACTICE}/{name}.py" for name in ("judging", "updates", "decisions")]
    for path in [*places, *judges()]:
        for node in ast.walk(ast.parse(text_of(path))):
            match node:
                case ast.Assign([target], value) if re.search(r"TOL|EXACT|FLOAT32", ast.unparse(target)):
                    found = list(ast.walk(value))
                case ast.keyword("rtol" | "atol", value) | ast.Compare(_, [ast.Lt() | ast.LtE()], [value]):
                    found = [value]
                case _:
                    continue
            for number in found:
                if isinstance(number, ast.Constant) and isinstance(number.value, float) and 0 < number.value < 1e-3:
                    yield in_text(path, *span(text_of(path), number), "1e-2")


# The map, the README, facts and plans


@kind("minutes in 00's map")
def _():
    path = "notebooks/00_start.ipynb"
    for found in re.finditer(r"\| (\d+) \|", text_of(path)):
        if "_" in text_of(path)[found.start() - 200 : found.start()]:
            yield in_text(path, *found.span(1), another(found[1]))


@kind("a figure in the README's table")
def _():
    for row in re.finditer(r"^\| .*%.*\|$", text_of("README.md"), flags=re.M):
        for found in re.finditer(r"\d+(?=%)", row[0]):
            start = row.start() + found.start()
            yield in_text("README.md", start, start + len(found[0]), another(found[0]))


def facts() -> Iterator[tuple[str, re.Match, dict]]:
    """Each fact's file, its place in it, and what it says."""
    for path in sorted((ROOT / "data" / "facts").glob("*.toml")):
        name = path.relative_to(ROOT).as_posix()
        tables = tomllib.loads(text_of(name))
        for found in re.finditer(r"^\[([\w-]+)\]\n(?:(?!^\[).*\n)*", text_of(name), flags=re.M):
            yield name, found, tables[found[1]]


@kind("a number in a fact's statement")
def _():
    for path, place, _ in facts():
        statement = re.search(r"^statement = .*$", place[0], flags=re.M)
        for found in re.finditer(r"(?<![\w.#_])\d[\d,]*(?:\.\d+)?(?![\w])", statement[0]):
            start, number = place.start() + statement.start() + found.start(), found[0].rstrip(",")
            yield in_text(path, start, start + len(number), another(number))


@kind("a fact's basis")
def _():
    """Its falsifier goes, unless it is now called executed."""
    for path, place, fact in facts():
        for basis in ("executed", "recorded", "cited", "derived"):
            if basis != fact["basis"]:
                new = place[0].replace(f'basis = "{fact["basis"]}"', f'basis = "{basis}"')
                gone = r"^falsifier\.(?:\w+) = (?:'''.*?'''|\"\"\".*?\"\"\"|.*?)$\n"
                new = re.sub(gone, "", new, flags=re.M | re.S)
                text = text_of(path)
                what = f"{place[1]}: {fact['basis']} -> {basis}"
                make = lambda text=text, place=place, new=new: text[: place.start()] + new + text[place.end() :]  # noqa: E731
                yield Change(path, what, make, runs=True)


SCOPE = (
    r",? (?:on a (?:CPU|GPU)|on CUDA|in (?:b?float(?:16|32|64))|by default|with(?:out)? (?:plain )?"
    r"(?:SGD|Adam\w*|momentum|weight decay)|under autocast|on (?:one|two) ranks?)\b"
)


@kind('a fact\'s scope: "on a CPU" and the like go')
def _():
    for path, place, _ in facts():
        statement = re.search(r"^statement = .*$", place[0], flags=re.M)
        for found in re.finditer(SCOPE, statement[0]):
            start = place.start() + statement.start()
            yield in_text(path, start + found.start(), start + found.end(), "")


@kind("a section's minutes in the instructor's plan")
def _():
    return of_matches(
        "markdown", r"^\| (?:Why|Step|See|Your|Metrics|Predict)[^|]*\| (\d+) \|$", lambda found: another(found[1])
    )


def chosen(seed: int, many: int) -> dict[str, list[Change]]:
    """So many changes of each kind, in different files if there are enough."""
    drawn = {}
    for name, find in KINDS.items():
        found = list(find())
        random.Random(f"{seed} {name}").shuffle(found)
        first = list({change.path: change for change in reversed(found)}.values())
        random.Random(f"{seed} {name} files").shuffle(first)
        drawn[name] = (first + [change for change in found if change not in first])[:many]
    return drawn
