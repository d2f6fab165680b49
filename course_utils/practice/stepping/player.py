"""Back, Next, Play, a slider and the list of versions, made of ipywidgets alone."""

from collections.abc import Callable
from typing import Any

from course_utils.practice.stepping.drawing import marked_up, panel
from course_utils.practice.stepping.words import sentence
from course_utils.recording.stepping import Steps


def player(names: list[str], run: Callable[[str], Steps]) -> Any:
    """A widget that shows a record moment by moment.

    Args:
        names: Of the versions of the loop, the first one to be shown first.
        run: Runs a version and returns its record.
    """
    from ipywidgets import HTML, Button, HBox, IntSlider, Layout, Play, ToggleButtons, VBox
    from traitlets import link

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
    said = HTML(layout=Layout(min_height="3.4em", width="auto"))
    shown = HTML(layout=Layout(width="auto"))

    def say(text: str) -> None:
        style = "border-left:4px solid #0072B2;padding:0.2em 0.8em;line-height:1.5;min-height:3em"
        said.value = f'<div role="status" aria-live="polite" style="{style}">{marked_up(text)}</div>'

    def show(*_: Any) -> None:
        steps = run(which.value)
        place = min(slider.value, len(steps.frames) - 1)
        say(sentence(steps, place))
        shown.value = "".join(panel(steps, place))

    def choose(*_: Any) -> None:
        try:
            last = len(run(which.value).frames) - 1
        except Exception as problem:
            say(f"{type(problem).__name__}: {problem}")
            return
        count.value = f"of {last}"
        slider.value = 0  # shows it, unless it is 0 already
        play.max = slider.max = last
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
    return VBox([*([which] if len(names) > 1 else []), controls, said, shown])
