"""The course as a website: `python -m course_utils.publish.site`.

`notebooks` turns each notebook, as it was committed, into a page and its solutions into another; `reference` writes the
pages on rules, facts and functions; `front` the first page; `rendering` has Sphinx make HTML of them. Nothing is
executed but the loop on the first page, which is recorded with `step_through`. Needs the extra `site`, and no network.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from tqdm import tqdm

from course_utils.publish import PublishError, colab
from course_utils.publish.notebook import Notebook, folder, read_notebooks
from course_utils.publish.output import all_or_nothing
from course_utils.publish.site import front, reference
from course_utils.publish.site.notebooks import page, solutions
from course_utils.publish.site.rendering import render, require_tools

__all__ = ["build", "write_source"]

HERE = Path(__file__).parent
TO_THE_TOP = "../../../../"  # from `pages` to the repository, where GitHub shows them: on the site they lie at the top
PRINTED = ("learner", "worksheet", "instructor")  # editions that a page offers if they have been printed


def build(out: Path, printed: Path | None = None) -> int:
    """Writes the site into a folder, all of it or nothing, and returns the number of its pages.

    Args:
        out: The folder.
        printed: The folder that `python -m course_utils.handouts` has written; its PDFs are offered for download.

    Raises:
        PublishError: If an extra is missing, a notebook or a fact cannot be read, Sphinx warns of anything, or the
            folder cannot be written.
    """
    require_tools()
    if printed and not any(printed.rglob("*.pdf")):
        raise PublishError(f"there are no handouts in {printed}; write them with python -m course_utils.handouts")
    with TemporaryDirectory() as temporary, all_or_nothing(out) as unfinished:
        source = Path(temporary)
        pages = write_source(source, printed)
        with tqdm(total=pages, desc="site", unit="page") as bar:
            render(source, unfinished, bar.update)
    return pages


def write_source(source: Path, printed: Path | None = None) -> int:
    """Writes what Sphinx reads, and returns how many pages it is."""
    notebooks = read_notebooks()
    repository = colab.hosted(folder().parent / "pyproject.toml")
    downloads = list(_downloads(source / "extra", notebooks, repository, printed))
    texts = dict(_texts(notebooks, repository, downloads))
    for name, text in texts.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(HERE / "static", source / "static")
    front.record(source / "static" / "trace.html")
    reference.draw_silhouettes(source / "rules" / "silhouettes.png")
    return len(texts)


def _texts(notebooks: dict[str, Notebook], repository: str, downloads: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pages: the name of a file, and its text."""
    yield "index.md", front.markdown(notebooks)
    for name, notebook in notebooks.items():
        yield f"notebooks/{name}.ipynb", nbformat.writes(page(notebook, _links(name, repository, downloads)))
        apart = solutions(notebook)
        if apart:
            yield f"solutions/{name}.ipynb", nbformat.writes(apart)
    yield (
        "solutions/index.md",
        front.listing("Solutions", "solutions", [n for n in notebooks if solutions(notebooks[n])]),
    )
    for path in sorted((HERE / "pages").glob("*.md")):
        yield path.name, _for_the_site(path.read_text(encoding="utf-8"))
    yield from reference.texts(notebooks)


def _for_the_site(text: str) -> str:
    """A page whose links lead to the site's own: there all notebooks lie in one folder."""
    return text.replace(TO_THE_TOP, "").replace("notebooks/deeper/", "notebooks/")


def _downloads(extra: Path, notebooks: dict[str, Notebook], repository: str, printed: Path | None) -> Iterator[str]:
    """Copies what can be downloaded, and yields the names of the files."""
    (extra / "colab").mkdir(parents=True)
    for name, notebook in () if repository else notebooks.items():  # a hosted edition is a link
        text = nbformat.writes(colab.edition(notebook, repository)) + "\n"
        (extra / "colab" / f"{name}.ipynb").write_text(text, encoding="utf-8")
        yield f"colab/{name}.ipynb"
    for path in sorted(printed.rglob("*.pdf")) if printed else ():
        name = f"print/{path.relative_to(printed).as_posix()}"
        (extra / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, extra / name)
        yield name


def _links(name: str, repository: str, downloads: Sequence[str]) -> str:
    """One line with the ways to run or to print a notebook."""
    if repository:
        found = [f"[Open in Colab]({colab.address(name, repository)})"]
    else:
        found = [f'<a href="../colab/{name}.ipynb" download>Download it for Colab</a>, one file with all that it needs']
    found += [
        f'<a href="../print/{edition}/{name}.pdf">{edition} edition (PDF)</a>'
        for edition in PRINTED
        if f"print/{edition}/{name}.pdf" in downloads
    ]
    return " · ".join(found)
