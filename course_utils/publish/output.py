"""Files that are written all together or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from course_utils.publish import PublishError


@contextmanager
def all_or_nothing(out: Path) -> Iterator[Path]:
    """A folder to write in, whose files are moved into `out` at the end; after an error nothing of it is left.

    Raises:
        PublishError: If a file cannot be written.
    """
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=".unfinished-", dir=out))
        yield folder
        _move(folder, out)
    except OSError as problem:
        raise PublishError(f"cannot write in {out}: {problem.strerror or problem}; nothing was written") from problem
    finally:
        if folder:
            rmtree(folder, ignore_errors=True)
        for empty in created:
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def _move(folder: Path, out: Path) -> None:
    """Moves all files. Where one cannot be moved, those that were replaced come back."""
    moves = [(path, out / path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = Path(mkdtemp(prefix="replaced-", dir=folder))
    done: list[tuple[Path, Path | None]] = []
    try:
        for number, (source, target) in enumerate(moves):
            target.parent.mkdir(parents=True, exist_ok=True)
            before = target.replace(kept / str(number)) if target.is_file() else None
            done.append((target, before))
            source.replace(target)
    except BaseException:
        for target, before in done:
            target.unlink(missing_ok=True)
            if before:
                before.replace(target)
            elif target.parent != out and not any(target.parent.iterdir()):
                target.parent.rmdir()
        raise
