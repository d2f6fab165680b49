"""step_through: a training loop line by line, as it runs."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_utils.practice.display import as_static, show_widget
from course_utils.practice.stepping.drawing import plain, strip, strip_rows
from course_utils.practice.stepping.page import page
from course_utils.practice.stepping.variants import AS_WRITTEN, variants
from course_utils.ranks import Ranks
from course_utils.recording.stepping import Frame, Loop, Scene, Steps
from course_utils.recording.trace import Trace
from gradaudit.interrupts import write_whole

__all__ = ["Stepping", "step_through"]


def step_through(
    loop: Callable, *args: Any, versus: Callable | None = None, on: Ranks | None = None, **kwargs: Any
) -> "Stepping":
    """Runs a training loop on copies of its arguments, and shows what each of its lines does.

    The model, the optimizer, the data and the random numbers stay as they are. Where a kernel is live, the loop can be
    changed in small ways (without zero_grad(), for example); then it runs again, from the same start.

    Args:
        loop: A plain Python function.
        *args: What you would call it with; the model and the optimizer must be among them.
        versus: Another loop, which is called with the same arguments and shown beside the first.
        on: Several ranks, each of which runs the loop on copies of its own; the first two are shown side by side. The
            loop may wrap the model in DDP: what it gets is the plain model.
        **kwargs: What you would call it with.

    Returns:
        A `Stepping`: `.run(version)` has the recorded values, and `.save("page.html")` writes a page of its own.

    Raises:
        TypeError: If a loop is no such function, cannot be called like this, or an argument cannot be copied.
        ValueError: If a loop's source is not available, no weights are passed, or a function uses a model that is not
            among the arguments; or both `versus` and `on` are given.

    Example:
        def train(w, batches, optimizer):
            for x in batches:
                (w * x).backward()
                optimizer.step()
                optimizer.zero_grad()

        step_through(train, w, [2.0, 3.0], torch.optim.SGD([w], lr=0.5))
    """
    stepping = Stepping(loop, versus, args, kwargs, on)
    stepping.show()
    return stepping


class Stepping:
    """A loop that has been run and recorded, and its versions, which run when they are asked for."""

    def __init__(self, loop: Callable, versus: Callable | None, args: tuple, kwargs: dict, on: Ranks | None = None):
        if versus is not None and on is not None:
            raise ValueError("two loops or two ranks can stand side by side, not both: leave out versus= or on=")
        self._loop, self._versus, self._on = Loop(loop), None if versus is None else Loop(versus), on
        self._scene = Scene(self._loop, args, kwargs)
        self._records: dict[str, list[Steps]] = {AS_WRITTEN: self._recorded(self._loop)}
        self._versions = {AS_WRITTEN: self._loop}
        if self._versus is None:
            self._versions = variants(replace(self._records[AS_WRITTEN][0], loop=self._loop))
        else:
            Scene.check(self._versus, args, kwargs)
        self._shown_by: int | None = None

    @property
    def versions(self) -> list[str]:
        """The names of the loop's versions: "as written", and the changes that apply to it."""
        return list(self._versions)

    def run(self, version: str = AS_WRITTEN) -> Steps:
        """The record of a version of the loop, on several ranks that of rank 0; it runs if it has not run yet.

        Args:
            version: One of `versions`.

        Raises:
            ValueError: If there is no such version.
        """
        if version not in self._versions:
            raise ValueError(f"there is no version {version!r} of {self._loop.name}, only {self.versions}")
        return self._of(version)[0]

    @property
    def other(self) -> Steps:
        """The record of the loop that was given as `versus`."""
        if self._versus is None:
            raise ValueError("there is one loop only; give another one as versus=")
        if "versus" not in self._records:
            self._records["versus"] = self._recorded(self._versus)
        return self._records["versus"][0]

    def save(self, path: str | Path) -> Path:
        """Writes a page with all versions, which a browser shows without a kernel and without a network.

        Args:
            path: Of the file, such as "stepping.html".
        """
        path = Path(path)
        write_whole(path, page(self._title, {name: self._tracks(name) for name in self.versions}))
        return path

    def show(self) -> None:
        """Displays it: a widget where a kernel is live, its key frames where none is."""
        from course_utils.practice.stepping.player import player

        tracks = self._tracks(AS_WRITTEN)
        html, text, told = "", "", []
        for steps in tracks:
            html += strip(steps, f"Step by step: `{steps.loop.name}`")
            text += f"{steps.loop.name}, step by step:\n" + "".join(f"  {row}\n" for row in plain(steps).splitlines())
            head, rows = strip_rows(steps)
            told.append({"loop": steps.loop.name, "head": head, "rows": rows})
        if len(self.versions) > 1:
            note = f"Run this cell to step through it, and to change the loop: {', '.join(self.versions[1:])}."
            html, text = f"{html}<p>{note}</p>", text + note
        course = {"kind": "steps", "tracks": told, "versions": self.versions}
        show_widget(player(self.versions, self._tracks), as_static(html, text.rstrip(), course))
        self._shown_by = _cell()

    def _tracks(self, version: str) -> list[Steps]:
        return self._of(version) + ([self.other] if self._versus is not None else [])

    def _of(self, version: str) -> list[Steps]:
        if version not in self._records:
            self._records[version] = self._recorded(self._versions[version])
        return self._records[version]

    def _recorded(self, loop: Loop) -> list[Steps]:
        if self._on is None:
            return [self._scene.record(loop)]
        call = (self._loop.function, loop.lines, self._scene.args, self._scene.kwargs)
        return [_on_rank(rank, loop, *seen) for rank, seen in enumerate(self._on.run(_record_here, *call)[:2])]

    @property
    def _title(self) -> str:
        beside = f" and {self._versus.name}" if self._versus is not None else ""
        return f"{self._loop.name}{beside}, step by step"

    def _ipython_display_(self) -> None:
        """As the last line of a cell: it is there already, unless another cell has made it."""
        if self._shown_by is None or self._shown_by != _cell():
            self.show()

    def __repr__(self) -> str:
        return f"<Stepping through {self._title.removesuffix(', step by step')}>"


def _record_here(function: Callable, lines: list[str], args: tuple, kwargs: dict) -> tuple[list[Frame], Trace]:
    """On a rank: records the loop, or the version of it that has these lines."""
    loop = Loop(function)
    if lines != loop.lines:
        loop = Loop.changed(loop, lines)
    steps = Scene(loop, args, kwargs).record(loop)
    return steps.frames, steps.trace


def _on_rank(rank: int, loop: Loop, frames: list[Frame], trace: Trace) -> Steps:
    named = copy(loop)
    named.name = f"{loop.name}, rank {rank}"
    return Steps(named, frames, trace, rank)


def _cell() -> int | None:
    """The number of the cell that is running."""
    from IPython import get_ipython

    shell = get_ipython()
    return None if shell is None else shell.execution_count
