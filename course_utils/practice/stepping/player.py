"""Back, Next, Play, a slider and the list of versions, made of ipywidgets alone."""

from collections.abc import Callable
from typing import Any

from course_utils.practice.stepping.drawing import marked_up, panel, said
from course_utils.practice.stepping.sidebyside import moments
from course_utils.recording.stepping import Steps


def player(names: list[str], run: Callable[[str], list[Steps]]) -> Any:
    """A widget that shows a record moment by moment.

    Args:
        names: Of the versions of the loop, the first one to be shown first.
        run: Runs a version and returns its record, or two of them to be shown side by side.
    """
    from ipywidgets import HTML, Button, HBox, IntSlider, Layout, Play, ToggleButtons, VBox
    from traitlets import link

    tracks: list[Steps] = []
    places: list[tuple[int, ...]] = []
    button = Layout(width="5em", flex="0 0 auto")
    back = Button(description="Back", tooltip="One moment back", layout=button)
    following = Button(description="Next", tooltip="One moment on", layout=button)
    words = HTML("or play it:", layout=Layout(flex="0 0 auto", margin="0 0.4em 0 1em"))
    play = Play(interval=1200, min=0, layout=Layout(flex="0 0 auto"))
    slider = IntSlider(description="moment", min=0, layout=Layout(flex="1 1 14em", min_width="10em"))
    count = HTML(layout=Layout(flex="0 0 auto", min_width="4em"))
    # Buttons, since JupyterLab takes the arrow keys that a list would need.
    style = {"button_width": "auto", "description_width": "auto"}
    which = ToggleButtons(description="The loop", options=names, style=style, layout=Layout(width="auto"))
    sentence = HTML(layout=Layout(min_height="3.4em", width="auto"))
    shown = HTML(layout=Layout(width="auto"))

    def show(*_: Any) -> None:
        here = places[min(slider.value, len(places) - 1)]
        sentence.value = _said(said(tracks, here))
        shown.value = "".join(panel(tracks, here))

    def choose(*_: Any) -> None:
        try:
            found = run(which.value)
        except Exception as problem:
            sentence.value = _said(marked_up(f"{type(problem).__name__}: {problem}"))
            return
        tracks[:], places[:] = found, moments(found)
        count.value = f"of {len(places) - 1}"
        slider.value = 0  # shows it, unless it is 0 already
        play.max = slider.max = len(places) - 1
        show()

    choose()
    link((play, "value"), (slider, "value"))
    slider.observe(show, names="value")
    which.observe(choose, names="value")
    back.on_click(lambda _: setattr(slider, "value", max(0, slider.value - 1)))
    following.on_click(lambda _: setattr(slider, "value", min(slider.max, slider.value + 1)))
    controls = HBox(
        [back, following, words, play, slider, count], layout=Layout(flex_flow="row wrap", align_items="center")
    )
    rows = [which] if len(names) > 1 else []
    return VBox([*rows, controls, sentence, shown])


def _said(html: str) -> str:
    style = "border-left:4px solid #0072B2;padding:0.2em 0.8em;line-height:1.5;min-height:3em"
    return f'<div role="status" aria-live="polite" style="{style}">{html}</div>'
