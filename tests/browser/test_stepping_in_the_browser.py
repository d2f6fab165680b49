"""The stepped loop in a browser, by mouse and keyboard: in JupyterLab, and with no kernel."""

import json
from pathlib import Path

import pytest
import torch

from course_utils import Tally
from course_utils.stepping.drawing import frames
from course_utils.stepping.player import player
from course_utils.stepping.recorder import record_steps

NOTEBOOKS = Path(__file__).parent.parent.parent / "notebooks"


def cell_number(name: str, text: str) -> int:
    """The number of the code cell of a notebook in which a text stands."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    (number,) = [
        number for number, cell in enumerate(cells) if cell["cell_type"] == "code" and text in "".join(cell["source"])
    ]
    return number


def test_in_jupyterlab_a_learner_steps_by_mouse_and_edits_the_loop(lab):
    lab.open("00_start")
    lab.run_cell(cell_number("00_start", "import importlib"))
    loop, number = cell_number("00_start", "def one_weight"), cell_number("00_start", "step_through(one_weight")
    lab.run_cell(loop)
    lab.run_cell(number)
    page = lab.cell(number).frame_locator("iframe")
    say, following = page.locator("#say"), page.get_by_role("button", name="Next")
    for text in ("The loop is called", "Now loss = 4."):
        say.get_by_text(text).wait_for(timeout=20_000)
        following.click()
    assert say.inner_text() == "backward() puts the gradient of micro-batch 1 into .grad: None → -4."
    assert page.locator("[aria-current=step]").inner_text().split() == ["▶", "loss.backward()"]
    source = "".join(lab.cells()[loop]["source"])
    page.get_by_label("Moment").press("End")
    assert say.inner_text() == "The loop has ended after 3 updates. .grad still holds micro-batches 1, 2, 3."
    lab.run_cell(loop, source.replace("optimizer.step()", "optimizer.step()\n        optimizer.zero_grad()"))
    lab.run_cell(number)
    page.get_by_label("Moment").press("End")
    assert say.inner_text() == "The loop has ended after 3 updates."
    assert lab.errors == []


def modulo(model, batches, optimizer, n):
    for i, batch in enumerate(batches):
        (model(batch).mean() / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture(params=["light", "dark"])
def page(chromium, request, tmp_path):
    """A page that steps through five micro-batches, N = 2; what it asks the network is noted."""
    tally = Tally(5)
    loop = record_steps(modulo, tally, torch.arange(5).split(1), torch.optim.SGD(tally.parameters(), lr=1.0), 2)
    file = tmp_path / "page.html"
    file.write_text(
        f'<html style="color-scheme: {request.param}">{player("modulo", frames(*loop))}</html>', encoding="utf-8"
    )
    context = chromium.new_context(viewport={"width": 1100, "height": 700}, offline=True)
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
    page.goto(file.as_uri())
    yield page
    context.close()
    assert page.problems == []


def test_without_a_kernel_it_is_used_by_keyboard_alone(page):
    shown = page.frame_locator("iframe")
    say, count = shown.locator("#say"), shown.locator("#count")
    assert say.inner_text() == "The loop is called. None of its lines has run yet."
    shown.locator("#back").press("ArrowRight")
    assert say.inner_text().startswith("backward() puts the gradient of micro-batch 1 into .grad: None")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    last = shown.locator("#position").get_attribute("max")
    assert count.inner_text() == f"1 of {last}"
    page.keyboard.press("End")
    assert say.inner_text().startswith("The loop has ended after 2 updates. .grad still holds micro-batch 5. No step")
    assert shown.locator("#next").get_attribute("aria-disabled") == "true"
    page.keyboard.press("Home")
    assert count.inner_text() == f"0 of {last}"


HEIGHTS = """(_, max) => [...Array(max).keys()].map(index => {
  show(index);
  return document.getElementById("panel").offsetHeight;
})"""


def test_the_page_does_not_jump_and_nothing_in_it_is_cut_off(page):
    shown = page.frame_locator("iframe").locator("#position")
    assert len(set(shown.evaluate(HEIGHTS, int(shown.get_attribute("max"))))) == 1
    for width in (1100, 420):
        page.set_viewport_size({"width": width, "height": 800})
        assert shown.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        page.frames[1].wait_for_function("document.documentElement.scrollHeight <= innerHeight")  # or times out


def test_sliders_find_their_state_also_by_keyboard(chromium, tmp_path):
    states = [[f"{base}^{power}"] for base in (2, 3) for power in (1, 2, 4)]
    file = tmp_path / "page.html"
    file.write_text(player("Powers", states, {"base": ["2", "3"], "power": ["1", "2", "4"]}), encoding="utf-8")
    page = chromium.new_page()
    page.goto(file.as_uri())
    inner = page.frame_locator("iframe")
    inner.get_by_text("2^1").wait_for()
    inner.get_by_role("slider", name="base").press("ArrowRight")
    inner.get_by_role("slider", name="power").press("End")
    assert inner.locator("#say").inner_text() == "3^4"
    assert inner.locator("#word1").inner_text() == "4"
    assert not inner.get_by_role("button", name="Next").is_visible()
    page.close()
