"""Handouts for a workshop, built from the notebooks: `python -m course_utils.handouts`.

`parts` takes a notebook apart, `editions` decides what each reader gets, `plans` and `cheatsheet` add what is written
for an instructor, and `press` turns it into PDF. Needs the extra `handouts` (pandoc and Typst, no browser, no LaTeX).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from tqdm import tqdm

from course_utils.publish.handouts import cheatsheet, editions, plans, press
from course_utils.publish.handouts.parts import Handout, take_apart
from course_utils.publish.notebook import Notebook, chosen, read_notebooks, relinked
from course_utils.publish.output import all_or_nothing

__all__ = ["EDITIONS", "build"]

EDITIONS = (*editions.EDITIONS, "cheatsheet", "plans")

Job = tuple[str, Callable[[], bytes]]  # a file's name below the output folder, and what makes its content


def build(out: Path, wanted: Sequence[str] = EDITIONS, names: Sequence[str] = (), paper: str = "a4") -> list[Path]:
    """Builds handouts as PDF into a folder, all or none, and returns the files.

    Args:
        out: The folder.
        wanted: Some of `EDITIONS`.
        names: Of notebooks, such as "02_zeroing"; all by default.
        paper: "a4" or "letter".

    Raises:
        PublishError: For an unknown name, a notebook that cannot be printed, a folder that cannot be written, or if
            pandoc or Typst is missing.
    """
    press.require_tools()
    notebooks = read_notebooks()
    jobs = list(_jobs(notebooks, wanted, chosen(notebooks, names), paper))
    with all_or_nothing(out) as folder:
        pool = ThreadPoolExecutor(os.cpu_count())  # pandoc is a process of its own, Typst works outside Python's lock
        try:
            running = {pool.submit(make): name for name, make in jobs}
            for future in tqdm(as_completed(running), total=len(running), desc="handouts", unit="file", delay=2):
                target = folder / running[future]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(future.result())
        finally:
            pool.shutdown(cancel_futures=True)
    return [out / name for name, _ in jobs]


def _jobs(notebooks: dict[str, Notebook], wanted: Sequence[str], names: list[str], paper: str) -> Iterator[Job]:
    """What is to be made. What cannot be printed is an error here, before anything is."""
    printed = [edition for edition in editions.EDITIONS if edition in wanted]
    handouts = [take_apart(notebooks[name]) for name in names] if printed else []
    for edition in printed:
        for handout in handouts:
            yield f"{edition}/{handout.notebook.name}.pdf", partial(_handout, handout, edition, names, paper)
    for sheet, module in (("cheatsheet", cheatsheet), ("plans", plans)):
        if sheet in wanted:
            text = module.markdown(notebooks)
            yield f"{sheet}.pdf", partial(press.pdf, text, {}, module.TITLE, module.EDITION, paper, module.TEMPLATE)


def _handout(handout: Handout, edition: str, names: list[str], paper: str) -> bytes:
    text, figures = editions.markdown(handout, edition)
    text = relinked(text, lambda said, name: f"[{said}]({name}.pdf)" if name in names else f"*{said}*")
    most_pages = 2 if edition == "worksheet" else 99
    return press.pdf(text, figures, handout.notebook.title, editions.EDITIONS[edition], paper, most_pages=most_pages)
