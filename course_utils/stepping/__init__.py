"""What can be played with: a training loop line by line, and a loop at any of some settings."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from course_utils.ask.display import as_table, show_html
from course_utils.stepping.drawing import frames, table_of
from course_utils.stepping.player import player
from course_utils.stepping.recorder import record_steps

__all__ = ["play_with", "step_through"]

MOST_STATES = 400


def step_through(loop: Callable, *args: Any, **kwargs: Any) -> None:
    """Runs a training loop and shows what it does, moment by moment, with or without a kernel.

    A moment is a loss, a backward pass, a change of gradients or weights, a step or a zeroing. The
    loop runs for real, as if you had called it. To see what another line would do, edit the loop
    and run its cell again.

    Args:
        loop: A plain Python function.
        *args: What you would call it with; its model, or the weights, must be among them.
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
    recording = record_steps(loop, *args, **kwargs)
    title, rows = f"{loop.__name__}, step by step", table_of(*recording)
    table = f"<details><summary>As a table</summary>{as_table(title, rows)}</details>"
    html = f"{player(title, frames(*recording))}\n{table}"
    text = "\n  ".join([f"{title}:", *(what for _, what, _ in rows[1:])])
    show_html(html, text, {"kind": "steps", "loop": loop.__name__, "rows": rows})


def play_with(title: str, controls: Mapping[str, Sequence[Any]], state: Callable[..., Sequence[str]]) -> None:
    """Shows sliders, and what a function says at each of their settings, with or without a kernel.

    Every state is computed when the cell runs: at most 400 of them.

    Args:
        title: What it shows.
        controls: By name the values of each slider.
        state: Gets a value of each, in their order, and returns a sentence and pieces of HTML.

    Raises:
        ValueError: If there are more states.

    Example:
        play_with("Squares", {"w": [1, 2, 3]}, lambda w: [f"w² is {w**2}."])
    """
    settings = list(product(*controls.values()))
    if len(settings) > MOST_STATES:
        raise ValueError(f"the sliders have {len(settings)} settings, and at most {MOST_STATES} can be computed")
    html = player(title, [state(*setting) for setting in settings], controls)
    legend = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in controls.items())
    show_html(html, f"{title}. {legend}", {"kind": "play", "title": title})
