"""Markdown into PDF, with pandoc and Typst. Same input, same bytes."""

import json
import re
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from course_utils.publish import PublishError
from course_utils.publish.handouts.breaks import groups
from course_utils.publish.handouts.filling import DPI, badness
from course_utils.publish.handouts.highlight import highlighted

if TYPE_CHECKING:
    import typst

TEMPLATES = Path(__file__).parent / "templates"
PAPERS = ("a4", "letter")
ROOM = {  # points that a line of code has
    "handout": {"a4": 479.0, "letter": 495.0},
    "cheatsheet": {"a4": 373.0, "letter": 348.0},
}
_SMALLEST, _LARGEST, _ADVANCE = 6.6, 8.0, 0.602  # sizes of code, and the width of a letter of size 1
_SPACINGS = ("1", "0.96", "1.04", "0.92", "0.9", "0.88", "0.86", "1.08", "0.84", "0.98", "0.8")
_INSTALL = 'install the extra: pip install -e ".[handouts]"'
# Markdown as Jupyter reads it, and names for what is in the text.
_DIALECT = "commonmark+attributes+bracketed_spans+fenced_divs+pipe_tables+raw_attribute+smart+tex_math_dollars"


def require_tools() -> None:
    """Raises `PublishError` if pandoc or Typst is not installed."""
    missing = [name for name in ("pypandoc", "typst") if find_spec(name) is None]
    if missing:
        raise PublishError(f"{' and '.join(missing)} not found; {_INSTALL}")


def pdf(
    text: str,
    figures: dict[str, bytes],
    title: str,
    edition: str,
    paper: str,
    template: str = "handout",
    most_pages: int = 99,
) -> bytes:
    """Markdown as a PDF; `PublishError` if pandoc or Typst refuses it.

    Args:
        text: Markdown.
        figures: PNG files by the names that the text calls them by.
        title: For the head of each page.
        edition: For the head of each page.
        paper: "a4" or "letter".
        template: "handout" or "cheatsheet".
        most_pages: How many pages it may have.
    """
    import typst

    body = _with_groups(typst_of(text), ROOM[template][paper])
    head = (
        f'#import "{template}.typ": *\n'
        f"#show: {template}.with(title: {_quoted(title)}, edition: {_quoted(edition)}, paper: {_quoted(paper)})\n"
    )
    with TemporaryDirectory() as folder:
        for name, png in figures.items():
            Path(folder, name).write_bytes(png)
        for file in TEMPLATES.glob("*.typ"):
            Path(folder, file.name).write_bytes(file.read_bytes())
        Path(folder, "main.typ").write_text(head + body, encoding="utf-8", newline="\n")
        compiler = typst.Compiler(Path(folder, "main.typ"), root=folder, ignore_system_fonts=True)
        try:
            spacing = _spacing(compiler, most_pages) if template == "handout" else "1"
            return compiler.compile(sys_inputs={"spacing": spacing}, timestamp=0)
        except typst.TypstError as problem:
            raise PublishError(f"{title}: Typst says: {problem}") from problem


def _spacing(compiler: "typst.Compiler", most_pages: int) -> str:
    """How much space between lines and paragraphs leaves no page half empty, as a factor: as near to 1 as can be."""
    found = {}
    for spacing in _SPACINGS:
        pages = compiler.compile(format="png", ppi=DPI, sys_inputs={"spacing": spacing})
        found[spacing] = badness(pages if isinstance(pages, list) else [pages], most_pages)
        if not found[spacing]:
            break
    return min(found, key=found.get)


def typst_of(text: str) -> str:
    """Markdown as Typst's markup."""
    import pypandoc

    options = ["--to=typst-smart", f"--lua-filter={TEMPLATES / 'print.lua'}", "--wrap=none"]
    try:
        command = [pypandoc.get_pandoc_path(), f"--from={_DIALECT}", *options]
        run = subprocess.run(command, input=text.encode("utf-8"), capture_output=True, check=False)
    except OSError as problem:  # pypandoc without its pandoc
        raise PublishError(f"pandoc cannot be run ({problem}); {_INSTALL}") from problem
    if run.returncode:
        raise PublishError(f"pandoc says: {run.stderr.decode('utf-8', 'replace').strip()}")
    return run.stdout.decode("utf-8").replace("\r\n", "\n")


def size_of_code(sources: list[str], room: float) -> tuple[float, int]:
    """The size, in points, at which every line of the sources fits, and how many columns have room at that size.

    >>> size_of_code(["x" * 120], room=479.0), size_of_code(["pass"], room=479.0)
    ((6.63, 120), (8.0, 99))
    """
    longest = max((len(line) for source in sources for line in source.split("\n")), default=1)
    size = min(_LARGEST, max(_SMALLEST, int(100 * room / (_ADVANCE * longest)) / 100))
    return size, int(room / (_ADVANCE * size) + 0.01)


def _with_groups(body: str, room: float) -> str:
    """Each listing with the groups of its lines that no page break may part, and all in the size that has room."""
    found = r'^#listing\(kind: "(\w+)", keep: (\w+), ("(?:[^"\\]|\\.)*")\)$'
    listings = re.findall(found, body, flags=re.M)
    sources = [json.loads(source) for kind, _, source in listings if kind in ("python", "stub")]
    size, columns = size_of_code(sources, room)

    def listing(match: re.Match) -> str:
        kind, keep, source = match.groups()
        text = json.loads(source)
        parts = f"groups: {_array(groups(text, kind))}, runs: {_array([] if kind == 'output' else highlighted(text))}"
        return f'#listing(kind: "{kind}", {parts}, size: {size:.2f}pt, columns: {columns}, keep: {keep}, {source})'

    return re.sub(found, listing, body, flags=re.M)


def _array(values: Iterable) -> str:
    """Nested sequences as Typst writes them.

    >>> _array([(1, "a"), ()])
    '((1, "a",), (),)'
    """
    items = (_array(value) if isinstance(value, list | tuple) else json.dumps(value) for value in values)
    return f"({''.join(f'{item}, ' for item in items).rstrip()})"


def _quoted(text: str) -> str:
    return json.dumps(text.replace("'", "\u2019"), ensure_ascii=False)  # in a title it can only be an apostrophe
