"""step_through: a training loop line by line, as it runs."""

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from course_utils.practice.display import as_static, show_widget
from course_utils.practice.stepping.drawing import marked_up, panel, plain, strip, strip_rows
from course_utils.practice.stepping.variants import AS_WRITTEN, variants
from course_utils.practice.stepping.words import sentence
from course_utils.recording.stepping import Loop, Scene, Steps
from gradaudit.interrupts import write_whole

__all__ = ["Stepping", "step_through"]


def step_through(loop: Callable, *args: Any, **kwargs: Any) -> "Stepping":
    """Runs a training loop on copies of its arguments, and shows what each of its lines does.

    The model, the optimizer, the data and the random numbers stay as they are. Where a kernel is live, the loop can be
    changed in small ways (without zero_grad(), for example); then it runs again, from the same start.

    Args:
        loop: A plain Python function.
        *args: What you would call it with; the model and the optimizer must be among them.
        **kwargs: What you would call it with.

    Returns:
        A `Stepping`: `.run(version)` has the recorded values, and `.save("page.html")` writes a page of its own.

    Raises:
        TypeError: If the loop is no such function, cannot be called like this, or an argument cannot be copied.
        ValueError: If its source is not available, no weights are passed, or a function uses a model that is not among
            the arguments.

    Example:
        def train(w, batches, optimizer):
            for x in batches:
                (w * x).backward()
                optimizer.step()
                optimizer.zero_grad()

        step_through(train, w, [2.0, 3.0], torch.optim.SGD([w], lr=0.5))
    """
    stepping = Stepping(loop, args, kwargs)
    stepping.show()
    return stepping


class Stepping:
    """A loop that has been run and recorded, and its versions, which run when they are asked for."""

    def __init__(self, loop: Callable, args: tuple, kwargs: dict):
        written = Loop(loop)
        self._title = f"{written.name}, step by step"
        self._scene = Scene(written, args, kwargs)
        self._records = {AS_WRITTEN: self._scene.record(written)}
        self._versions = variants(self._records[AS_WRITTEN])

    @property
    def versions(self) -> list[str]:
        """The names of the loop's versions: "as written", and the changes that apply to it."""
        return list(self._versions)

    def run(self, version: str = AS_WRITTEN) -> Steps:
        """The record of a version of the loop; it runs if it has not run yet.

        Args:
            version: One of `versions`.
        """
        if version not in self._records:
            self._records[version] = self._scene.record(self._versions[version])
        return self._records[version]

    def save(self, path: str | Path) -> Path:
        """Writes a page with all versions, which a browser shows without a kernel and without a network.

        Args:
            path: Of the file, such as "stepping.html".
        """
        pieces: dict[str, int] = {}  # each text once: most moments change little
        told = []
        for name in self.versions:
            steps = self.run(name)
            moments = [[marked_up(sentence(steps, k)), *panel(steps, k)] for k in range(len(steps.frames))]
            numbers = [[pieces.setdefault(piece, len(pieces)) for piece in moment] for moment in moments]
            told.append({"name": name, "moments": numbers})
        data = json.dumps({"versions": told, "pieces": list(pieces)}, ensure_ascii=False, separators=(",", ":"))
        html = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8")).safe_substitute(
            title=escape(self._title), strip=strip(self.run()), data=data.replace("<", "\\u003c")
        )
        write_whole(Path(path), html)
        return Path(path)

    def show(self) -> None:
        """Displays it: a widget where a kernel is live, its key frames where none is."""
        from course_utils.practice.stepping.player import player

        steps = self.run()
        html = f"<p><b>{marked_up(f'Step by step: `{steps.loop.name}`')}</b></p>{strip(steps)}"
        text = "\n  ".join([f"{self._title}:", *plain(steps)])
        head, rows = strip_rows(steps)
        if self.versions[1:]:
            note = f"Run this cell to step through it, and to change the loop: {', '.join(self.versions[1:])}."
            html, text = f"{html}<p>{note}</p>", f"{text}\n{note}"
        track = {"loop": steps.loop.name, "head": head, "rows": rows}
        course = {"kind": "steps", "tracks": [track], "versions": self.versions}
        show_widget(player(self.versions, self.run), as_static(html, text, course))

    def _ipython_display_(self) -> None:
        """As the last line of a cell: it is there already."""
