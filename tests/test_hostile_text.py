"""Whatever a path, a message or an answer holds, it stays text in the pages that show it."""

import re
from html import unescape

import pytest

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


def verdict(text):
    shown = []
    before, display._display = display._display, lambda data, *_: shown.append(data["text/html"])
    try:
        display.show_verdict(display.WRONG, text, text, text, {})
        display.show_html(display.box(display.ASK, display.with_code(text)), text, {}, head=text)
        display.show_loop(text, text, [1])
    finally:
        display._display = before
    return "".join(shown)


TAGS = re.compile(r"<(?!/?code>)[a-z/!][^>]*>")


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text):
    harmless, page = verdict("harmless"), verdict(text)
    assert TAGS.findall(page) == TAGS.findall(harmless)
    assert text.partition("`")[0] in unescape(page)
