"""The notebooks without a kernel: converted to HTML they show every prediction, card, verdict and figure."""

import base64
import re
from html import unescape

import pytest

from course import NOTEBOOKS


@pytest.fixture(scope="module")
def exporter():
    """Its templates are compiled once."""
    nbconvert = pytest.importorskip("nbconvert", reason="nbconvert comes with JupyterLab")
    return nbconvert.HTMLExporter(template_name="basic", exclude_input=True)


def squeezed(text: str) -> str:
    """Text as it is compared: entities resolved, white space alike."""
    return " ".join(unescape(text).split())


@pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_converted_to_html_it_shows_all_that_it_asks_and_draws(notebook, exporter):
    page, _ = exporter.from_notebook_node(notebook.node)
    page = re.sub(r"\s+", " ", page)
    text = squeezed(page)
    outputs = [output for cell in notebook.code for output in cell.outputs]

    for prediction in notebook.predictions:
        assert f"<b>Predict:</b> {squeezed(prediction['question'])}" in text
        assert all(f"<div>☐ {option}</div>" in text for option in map(squeezed, prediction["options"]))
    for question, answer in notebook.cards:
        question, answer = (re.escape(squeezed(part)) for part in (question, answer))
        assert re.search(rf"<details[^>]*><summary>{question}</summary><div[^>]*>{answer}<", text), question

    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert page.count("data:image/png;base64,") == len(figures)
    for output in figures:
        assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
        assert len(output.metadata["image/png"]["alt"]) > 20
        assert squeezed(output.metadata["image/png"]["alt"]) in text
    assert not re.search(r"Box\(children|HTML\(value|&lt;Figure", page)
