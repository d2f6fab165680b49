"""Handouts for a workshop, built from the notebooks: `python -m course_utils.handouts`.

`cells` reads a notebook, `editions` decides what each reader gets, `plans` and `cheatsheet` add what is made for an
instructor, `press` turns it into PDF and HTML. Needs the extra `handouts` (pandoc and Typst, no browser, no LaTeX).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from tqdm import tqdm

from course_utils.publish.handouts import cheatsheet, editions, plans, press
from course_utils.publish.handouts.cells import HandoutError, Notebook, read

__all__ = ["EDITIONS", "FORMATS", "HandoutError", "build"]

EDITIONS = ("learner", "instructor", "cheatsheet", "plans")
FORMATS = ("pdf", "html")

Job = tuple[str, Callable[[], bytes]]  # a file's name below the output folder, and what makes its content


def build(
    out: Path,
    wanted: tuple[str, ...] = EDITIONS,
    formats: tuple[str, ...] = FORMATS,
    names: tuple[str, ...] = (),
    paper: str = "a4",
) -> list[Path]:
    """Builds handouts into the folder `out`; either all of them are written or none.

    **Arguments:** `wanted`: some of `EDITIONS`; `formats`: some of `FORMATS`; `names`: notebooks, all by default;
    `paper`: "a4" or "letter".

    **Returns:** the files that were written.

    **Raises:** `HandoutError` for an unknown name, a notebook that cannot be printed, a folder that cannot be written,
    or if pandoc or Typst is missing.

    >>> build(Path("build"), ("learner",), ("pdf",), names=("02_zeroing",))  # doctest: +SKIP
    [PosixPath('build/learner/02_zeroing.pdf')]
    """
    press.require_tools()
    paths = _notebooks()
    for name in names:
        if name not in paths:
            raise HandoutError(f"there is no notebook {name!r}, only {', '.join(paths)}")
    notebooks = {name: read(path) for name, path in paths.items()}  # the plans and the cheat sheet need them all
    jobs = list(_jobs(notebooks, wanted, formats, names or tuple(paths), paper))
    with _all_or_nothing(out) as folder:
        pool = ThreadPoolExecutor(max_workers=2)  # pandoc is a process of its own, Typst works outside Python's lock
        try:
            running = {pool.submit(make): name for name, make in jobs}
            for future in tqdm(as_completed(running), total=len(running), desc="handouts", unit="file"):
                target = folder / running[future]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(future.result())
        finally:
            pool.shutdown(cancel_futures=True)
    return [out / name for name, _ in jobs]


def _notebooks() -> dict[str, Path]:
    """The notebooks of the folder that the command runs in, or of the repository that this package lies in."""
    folders = (Path("notebooks"), Path(__file__).parents[3] / "notebooks")
    for folder in folders:
        paths = {path.stem: path for path in sorted(folder.glob("*.ipynb"))}
        if paths:
            return paths
    raise HandoutError(f"no notebooks found in {' or '.join(map(str, folders))}; run this in the course's folder")


def _jobs(
    notebooks: dict[str, Notebook],
    wanted: tuple[str, ...],
    formats: tuple[str, ...],
    names: tuple[str, ...],
    paper: str,
) -> Iterator[Job]:
    for edition in editions.EDITIONS:
        if edition in wanted:
            for name in names:
                for kind in formats:
                    yield f"{edition}/{name}.{kind}", _handout(notebooks[name], edition, kind, names, paper)
    for sheet, module in (("cheatsheet", cheatsheet), ("plans", plans)):
        if sheet in wanted:
            for kind in formats:
                yield f"{sheet}.{kind}", _sheet(module, notebooks, kind, paper)


def _handout(notebook: Notebook, edition: str, kind: str, names: tuple[str, ...], paper: str) -> Callable[[], bytes]:
    def make() -> bytes:
        text, figures = editions.markdown(notebook, edition)
        text = editions.link_siblings(text, names, kind)
        if kind == "html":
            return press.html(text, figures, notebook.title)
        return press.pdf(text, figures, notebook.title, editions.EDITIONS[edition], paper)

    return make


def _sheet(module, notebooks: dict[str, Notebook], kind: str, paper: str) -> Callable[[], bytes]:
    text = module.markdown(notebooks)  # at once: a plan that does not add up is an error before anything is built

    def make() -> bytes:
        if kind == "html":
            return press.html(text, {}, module.TITLE)
        return press.pdf(text, {}, module.TITLE, module.EDITION, paper, module.TEMPLATE)

    return make


@contextmanager
def _all_or_nothing(out: Path) -> Iterator[Path]:
    """A folder to write in, whose files are moved into `out` at the end; nothing is left of it after an error."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=".handouts-", dir=out))
    except OSError as problem:
        raise HandoutError(f"cannot write in {out}: {problem.strerror or problem}") from problem
    try:
        yield folder
        for source in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = out / source.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
    except OSError as problem:
        raise HandoutError(f"cannot write in {out}: {problem.strerror or problem}") from problem
    finally:
        rmtree(folder, ignore_errors=True)
        for empty in made:
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()
