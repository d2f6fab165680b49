"""Files that are written all together or not at all."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from course_utils.publish import PublishError
from gradaudit.interrupts import uninterrupted


@contextmanager
def all_or_nothing(out: Path) -> Iterator[Path]:
    """A folder to write in, whose files are moved into `out` at the end; after an error nothing of it is left."""
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder = None
    try:
        with uninterrupted():
            out.mkdir(parents=True, exist_ok=True)
            folder = Path(mkdtemp(prefix=".unfinished-", dir=out))
        yield folder
        with uninterrupted():
            _move(folder, out)
    except OSError as problem:
        raise PublishError(f"cannot write in {out}: {problem.strerror or problem}; nothing was written") from problem
    finally:
        try:
            with uninterrupted():
                _clear(folder, created)
        except KeyboardInterrupt:
            _clear(folder, created)  # it may have come just before
            raise


def _clear(folder: Path | None, created: list[Path]) -> None:
    if folder:
        rmtree(folder, ignore_errors=True)
    for empty in created:
        if empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()


def _move(folder: Path, out: Path) -> None:
    """Moves all files. Where one cannot be moved, those that were replaced come back."""
    sources = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = Path(mkdtemp(prefix="replaced-", dir=folder))
    with ExitStack() as undo:
        for number, source in enumerate(sources):
            target = out / source.relative_to(folder)
            for parent in reversed([parent for parent in target.parents if not parent.exists()]):
                parent.mkdir()
                undo.callback(parent.rmdir)
            if target.is_file():
                undo.callback(target.replace(kept / str(number)).replace, target)
            source.replace(target)
            undo.callback(target.unlink)
        undo.pop_all()
