"""Whatever a path, a message or an answer holds, it stays text in the pages that show it."""

from html.parser import HTMLParser

import pytest

from course_utils.practice import display
from course_utils.project import page as project_page
from course_utils.project.accept import Acceptance
from course_utils.publish.handouts import press

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "]]><!--",
    "</title></style></pre><b>",
    "&lt;b&gt; &amp;amp;",
    '#eval("1") $x$ @ref `code` *bold* \\n',
]


class Read(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, sorted(name for name, _ in attributes)))

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        self.tags.append(("comment", data))


def accepted(text):
    return project_page.as_page(Acceptance(results=[]), text, text)


def verdict(text):
    shown = []
    before, display._display = display._display, lambda data, *_: shown.append(data["text/html"])
    try:
        display.show_verdict(display.WRONG, text, text, text, {})
        display.show_below(text, display.ASK, text)
    finally:
        display._display = before
    return "".join(shown) + display.folded(text, text)


PAGES = {
    "verdict": verdict,
    "project": accepted,
}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", PAGES)
def test_text_stays_text(name, text):
    harmless, page = Read(PAGES[name]("harmless")), Read(PAGES[name](text))
    assert [tag for tag in page.tags if tag != ("code", [])] == [tag for tag in harmless.tags if tag != ("code", [])]
    assert (text if "`" not in text or name != "verdict" else text.partition("`")[0]) in page.text


def test_markup_of_typst_stays_text_in_a_handout():
    body = press.typst_of('#eval("1") costs $5, not $6: @ref [x](<a b>) </title>\n\n    #eval(2)\n')
    assert r"\#eval" in body
    assert r"\$5, not \$6: \@ref" in body
    assert '"#eval(2)")' in body  # code, in a string
    assert press._quoted('a" #eval(3) \\') == r'"a\" #eval(3) \\"'
