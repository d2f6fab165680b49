"""Whatever a path, a message or an answer holds, it stays text in the pages that show it."""

import re
from html import unescape

import IPython.display
import pytest

from course_utils import recall
from course_utils.ask import display

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "]]><!--",
    "</title></style></pre><b>",
    "&lt;b&gt; &amp;amp;",
    '#eval("1") $x$ @ref `code` *bold* \\n',
]


@pytest.fixture
def pages(monkeypatch):
    """What shows a text in all its places, as HTML."""
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data["text/html"]))

    def show(text):
        shown.clear()
        display.show_verdict(display.WRONG, text, text, text, {})
        display.show_html(display.box(display.ASK, display.with_code(text)), text, {}, head=text)
        display.show_loop(text, text, [1])
        recall((text, text))
        return "".join(shown)

    return show


TAGS = re.compile(r"<(?!/?code>)[a-z/!][^>]*>")


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text, pages):
    harmless, page = pages("harmless"), pages(text)
    assert TAGS.findall(page) == TAGS.findall(harmless)
    assert text.partition("`")[0] in unescape(page)
