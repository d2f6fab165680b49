"""The notebooks without a kernel: converted to HTML they show every prediction, card, verdict and figure."""

import base64
import re
from html import unescape
from pathlib import Path

import nbformat
import pytest

from course_utils.practice.final import read_cards

nbconvert = pytest.importorskip("nbconvert", reason="nbconvert comes with JupyterLab")

PATHS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def squeezed(text: str) -> str:
    """Text as it is compared: entities resolved, white space alike."""
    return " ".join(unescape(text).split())


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_converted_to_html_it_shows_all_that_it_asks_and_draws(path):
    notebook = nbformat.read(path, as_version=4)
    page, _ = nbconvert.HTMLExporter(template_name="basic", exclude_input=True).from_notebook_node(notebook)
    page = re.sub(r"\s+", " ", page)
    text = squeezed(page)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]

    plain = [output.data["text/plain"] for output in outputs if "text/plain" in output.get("data", {})]
    predictions = [said for said in plain if said.startswith("Predict: ")]
    assert len(predictions) == sum(cell.source.count("predict(") for cell in notebook.cells if cell.cell_type == "code")
    for said in predictions:
        question, *options = said.split("\n  [ ] ")
        assert f"<b>Predict:</b> {squeezed(question.removeprefix('Predict: '))}" in text
        assert all(f"<div>☐ {option}</div>" in text for option in map(squeezed, options)), options

    for question, answer in read_cards()[path.stem]:
        question, answer = (re.escape(squeezed(part)) for part in (question, answer))
        assert re.search(rf"<details[^>]*><summary>{question}</summary><div[^>]*>{answer}<", text), question
    assert sum("Nothing answered yet here." in said for said in plain) == 1
    assert "Nothing answered yet here." in text

    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    sliders = sum(cell.source.count("explore(") for cell in notebook.cells if cell.cell_type == "code")
    assert sum(output.data["text/plain"].startswith("Sliders: ") for output in figures) == sliders
    assert page.count("data:image/png;base64,") == len(figures)
    for output in figures:
        assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
        assert len(output.metadata["image/png"]["alt"]) > 20
        assert squeezed(output.metadata["image/png"]["alt"]) in text
    assert not re.search(r"Box\(children|HTML\(value|&lt;Figure", page)
