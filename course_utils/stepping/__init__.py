"""step_through: a training loop line by line, as it runs."""

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from course_utils.ask.display import as_static, as_table, with_code
from course_utils.recording.stepping import Steps, record_steps
from course_utils.stepping.drawing import panel, table_of
from course_utils.stepping.words import sentence

__all__ = ["step_through"]


def step_through(loop: Callable, *args: Any, **kwargs: Any) -> None:
    """Runs a training loop, and shows what each of its lines does, moment by moment, with or without a kernel.

    The loop runs for real, as if you had called it. To see what another line would do, edit the loop and run its cell
    again.

    Args:
        loop: A plain Python function.
        *args: What you would call it with; the model or the optimizer must be among them.
        **kwargs: What you would call it with.

    Raises:
        TypeError: If the loop is no such function, or cannot be called like this.
        ValueError: If its source is not available, or no weights are passed.

    Example:
        def train(w, batches, optimizer):
            for x in batches:
                (w * x).backward()
                optimizer.step()
                optimizer.zero_grad()

        step_through(train, w, [2.0, 3.0], torch.optim.SGD([w], lr=0.5))
    """
    from IPython.display import display

    steps = record_steps(loop, *args, **kwargs)
    title, rows = f"{steps.loop.name}, step by step", table_of(steps)
    html = f"{frame(steps)}\n<details><summary>As a table</summary>{as_table(title, rows)}</details>"
    text = "\n  ".join([f"{title}:", *(what for _, what, _ in rows[1:])])
    display(as_static(html, text, {"kind": "steps", "loop": steps.loop.name, "rows": rows}), raw=True)


def frame(steps: Steps) -> str:
    """A page on which a browser goes through a record, without a kernel and without a network, in a frame."""
    pieces: dict[str, int] = {}  # each text once: most moments change little
    told = [[with_code(sentence(steps, place)), *panel(steps, place)] for place in range(len(steps.frames))]
    moments = [[pieces.setdefault(piece, len(pieces)) for piece in moment] for moment in told]
    data = json.dumps({"moments": moments, "pieces": list(pieces)}, ensure_ascii=False, separators=(",", ":"))
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    page = escape(template.substitute(data=data.replace("<", "\\u003c"))).replace("\n", "&#10;")
    style = "width:100%;height:36rem;border:0"
    return f'<iframe class="stepper" title="A training loop, step by step" style="{style}" srcdoc="{page}"></iframe>'
