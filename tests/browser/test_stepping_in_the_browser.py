"""The stepping trace in a browser, by mouse and by keyboard: in JupyterLab, and as a page of its own."""

import json
import os
from pathlib import Path

import pytest
import torch

from course_utils import Tally
from course_utils.practice import stepping
from course_utils.practice.stepping import step_through

NOTEBOOKS = Path(__file__).parent.parent.parent / "notebooks"
STEPS = "The loop is called", "The next round begins: x = 1, y = 2.", "Now loss = 4."
FIRST = "backward() puts the gradient of micro-batch 1 into .grad: None → -4."


def picture(page, name: str, where=None) -> None:
    """A picture of a part of the page, if the environment variable SCREENSHOTS names a folder for it."""
    if "SCREENSHOTS" in os.environ:
        folder = Path(os.environ["SCREENSHOTS"])
        folder.mkdir(parents=True, exist_ok=True)
        (where or page).screenshot(path=str(folder / f"{name}.png"))


def place_of(name: str, text: str) -> int:
    """The number of the code cell of a notebook in which a text stands."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    (number,) = [
        number for number, cell in enumerate(cells) if cell["cell_type"] == "code" and text in "".join(cell["source"])
    ]
    return number


def says(cell, text: str) -> None:
    """Waits until the trace says this."""
    cell.locator("[role=status]", has_text=text).wait_for(timeout=20_000)


def lit(cell) -> str:
    """The line with the pointer."""
    return cell.locator("[aria-current=step]").inner_text().strip()


def test_in_jupyterlab_a_learner_steps_by_mouse_and_by_keyboard(lab):
    """Goes through one_weight of 00 as a learner does."""
    lab.open("00_start")
    lab.run_cell(place_of("00_start", "import importlib"))
    number = place_of("00_start", "def one_weight")
    lab.run_cell(number)
    cell = lab.cell(number)
    back, following = (cell.get_by_role("button", name=which) for which in ("Back", "Next"))
    says(cell, STEPS[0])
    for text in (*STEPS[1:], FIRST):
        following.click()
        says(cell, text)
    assert lit(cell).split() == ["▶", "loss.backward()"]
    height = cell.bounding_box()["height"]
    picture(lab.page, "lab-backward", cell)
    back.click()
    says(cell, STEPS[2])

    following.press("Enter")
    says(cell, FIRST)
    following.press("Space")
    says(cell, "Update 1: step() uses micro-batch 1: w 0 → 1.")
    cell.locator(".noUi-handle").press("ArrowLeft")
    says(cell, FIRST)
    cell.locator(".noUi-handle").press("End")
    says(cell, "The loop has ended after 4 updates.")
    assert cell.bounding_box()["height"] == height, "the page must not jump while a learner goes through the loop"

    cell.get_by_role("button", name="without zero_grad()").press("Enter")
    cell.get_by_text("# left out: optimizer.zero_grad()").wait_for(timeout=20_000)
    says(cell, STEPS[0])
    cell.locator(".noUi-handle").press("End")
    says(cell, "The loop has ended after 4 updates. .grad still holds micro-batches 1 to 4.")
    picture(lab.page, "lab-forgotten", cell)
    cell.get_by_role("button", name="as written").press("Space")
    says(cell, STEPS[0])
    cell.locator(".jupyter-widget-play button, .widget-play button").first.press("Enter")
    says(cell, STEPS[1])  # it plays
    assert lab.errors == []


def modulo(model, batches, optimizer, n):
    for i, batch in enumerate(batches):
        (model(batch).mean() / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Saves the page of a loop over five micro-batches, N = 2."""
    monkeypatch.setattr(stepping, "show_widget", lambda *_: None)

    def save():
        tally = Tally(5)
        optimizer = torch.optim.SGD(tally.parameters(), lr=1.0)
        trace = step_through(modulo, tally, torch.arange(5).split(1), optimizer, 2)
        return trace.save(tmp_path / "page.html")

    return save


@pytest.fixture(params=["light", "dark"])
def page(chromium, request):
    """A page without a network: whatever it asks for but its own file is refused, and noted."""
    context = chromium.new_context(color_scheme=request.param, viewport={"width": 1100, "height": 700}, offline=True)
    page = context.new_page()
    page.scheme, page.problems = request.param, []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda wanted: page.problems.append(wanted.url) if wanted.url[:5] != "file:" else None)
    yield page
    context.close()


def test_the_page_from_disk_is_used_by_keyboard_alone(page, saved):
    page.goto(saved().as_uri())
    say, count = page.locator("#say"), page.locator("#count")
    assert say.inner_text() == "The loop is called. None of its lines has run yet."
    puts = "backward() puts the gradient of micro-batch 1 into .grad: weight[0] None → 0.5."
    for text in ("The next round begins: i = 0, batch = [0].", puts):
        page.keyboard.press("ArrowRight")
        assert say.inner_text() == text
    page.keyboard.press("ArrowLeft")
    last = page.locator("#position").get_attribute("max")
    assert count.inner_text() == f"1 of {last}"
    page.keyboard.press("End")
    assert say.inner_text().startswith("The loop has ended after 2 updates. .grad still holds micro-batch 5; no step")
    assert page.locator("#next").get_attribute("aria-disabled") == "true"
    picture(page, f"page-end-{page.scheme}")
    page.keyboard.press("Home")
    assert count.inner_text() == f"0 of {last}"

    page.keyboard.press("Tab")  # the list of versions is the first thing to reach, then Back and Next
    page.keyboard.press("ArrowDown")
    assert page.locator("#version").input_value() == "without zero_grad()"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert count.inner_text() == f"1 of {int(last) - 2}"  # two lines less
    page.keyboard.press("End")
    assert page.locator("#panel").inner_text().count("▲ update") == 2
    picture(page, f"page-forgotten-{page.scheme}")
    assert page.problems == []


HEIGHTS = """[...new Set(moments.map((_, place) => {
  show(place);
  return document.getElementById("panel").offsetHeight;
}))]"""


def test_the_page_does_not_jump_and_nothing_in_it_is_cut_off(page, saved):
    for width in (1100, 420):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(saved().as_uri())
        for version in range(page.locator("#version option").count()):
            page.locator("#version").select_option(index=version)
            heights = page.evaluate(HEIGHTS)
            assert len(heights) == 1, f"the panel changes its height: {heights}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.problems == []
