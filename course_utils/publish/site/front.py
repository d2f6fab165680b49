"""The first page: what the course is, a loop to step through, and the notebooks in their two groups."""

from collections.abc import Iterable
from pathlib import Path

from course_utils.publish.contents import groups, label, paths_table
from course_utils.publish.notebook import Notebook

TEXT = Path(__file__).with_name("front.md")
REFERENCE = ("loop", "pitfalls", "auditor", "rules/index", "facts", "claims", "api/index")
TEACHING = ("instructors", "solutions/index")


def markdown(notebooks: dict[str, Notebook]) -> str:
    """The page, with the table of contents of the whole site."""
    tables, trees = [], []
    for title, members in groups(notebooks).items():
        rows = [f"| {_link(_label(book), book)} | {book.question} | {book.minutes} |" for book in members]
        tables.append(
            "\n".join([f"### {title}", "", "| notebook | its question | minutes |", "| --- | --- | --- |", *rows])
        )
        entries = (f"{_label(book)} <notebooks/{book.name}>".replace("`", "") for book in members)
        trees.append(_tree(entries, title))
    trees += [_tree(REFERENCE, "Reference"), _tree(TEACHING, "Teaching")]
    text = TEXT.read_text(encoding="utf-8").replace("<!-- paths -->", paths_table(notebooks, _link))
    return "\n\n".join([text.replace("<!-- groups -->", "\n\n".join(tables)), *trees])


def listing(title: str, folder: str, names: Iterable[str]) -> str:
    """A page that lists pages of one folder."""
    entries = list(names)
    return "\n\n".join([f"# {title}", _tree(entries, hidden=False)])


def record(path: Path) -> None:
    """Records the loop of the first page, as a page of its own that needs no kernel."""
    import torch
    from torch import nn

    from course_utils.practice.stepping import Stepping

    w = nn.Parameter(torch.tensor(0.0))
    arguments = (w, [(1.0, 2.0)] * 4, torch.optim.SGD([w], lr=0.25))
    Stepping(one_weight, None, arguments, {}).save(path)


def one_weight(w, batches, optimizer):
    for x, y in batches:
        loss = (w * x - y) ** 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _label(book: Notebook) -> str:
    return f"{label(book)} · {book.title}" if book.name[0].isdigit() else book.title


def _link(text: str, book: Notebook) -> str:
    return f"[{text}](notebooks/{book.name}.ipynb)"


def _tree(entries: Iterable[str], caption: str = "", hidden: bool = True) -> str:
    options = [":hidden:"] * hidden + [f":caption: {caption}"] * bool(caption)
    return "\n".join(["```{toctree}", *options, "", *entries, "```"])
