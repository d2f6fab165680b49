"""The site, read from disk without a network: links, folds, trace, search, accessibility."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SOME = (
    *("index", "course/02_zeroing", "course/solutions/02_zeroing", "facts", "claims", "pitfalls"),
    *("rules", "rules/loss-scale", "api", "auditor"),
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "docs", out], cwd=ROOT, check=True)
    return out


@pytest.fixture
def visitor(chromium):
    context = chromium.new_context(offline=True)
    yield context.new_page()
    context.close()


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def test_no_link_is_broken_and_nothing_is_loaded_from_a_network(built):
    static = built / "_static"  # the theme's own templates
    pages = {path: _Page(path) for path in built.rglob("*.html") if static not in path.parents}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "data", "mailto"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages[target].anchors if target in pages else set()
            if not target.is_file() or (parts.fragment and target in pages and unquote(parts.fragment) not in known):
                broken.append(f"{path.relative_to(built)} -> {link}")
        loaded = re.findall(
            r'<(?:script|img|iframe|link)[^>]+(?:src|href)="https?://[^"]+"', path.read_text(encoding="utf-8")
        )
        broken += [f"{path.relative_to(built)} loads {tag}" for tag in loaded if "canonical" not in tag]
    assert broken == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_its_window(built, visitor, width):
    visitor.set_viewport_size({"width": width, "height": 900})
    for name in SOME:
        visitor.goto((built / f"{name}.html").as_uri())
        assert visitor.evaluate("document.documentElement.scrollWidth") <= width, name


def test_loops_step_without_a_kernel(built, visitor):
    visitor.goto((built / "course/00_start.html").as_uri())
    frame = visitor.frame_locator("iframe.stepper")
    frame.get_by_role("button", name="Next").click()
    assert frame.locator("#count").inner_text().startswith("1 of")


def test_a_silhouette_opens_its_loop_which_plays_and_a_choice_the_answer_and_its_rule(built, visitor):
    visitor.goto((built / "index.html").as_uri())
    visitor.locator(".silhouettes button").first.click()
    loop = visitor.locator(".loop:visible")
    loop.frame_locator("iframe").get_by_role("button", name="Pause").wait_for()
    loop.get_by_role("button", name="Never divides by N").click()
    assert loop.locator(".correct").inner_text() == "Keeps the tail for later"
    loop.get_by_role("link", name="leftover-gradients").click()
    assert visitor.url.endswith("rules/leftover-gradients.html")


def test_what_follows_an_answer_waits_for_a_choice(built, visitor):
    visitor.goto((built / "course/11_pitfalls.html").as_uri())
    waiting = visitor.locator(".waits").count()
    visitor.locator(".prediction button").last.click()
    assert visitor.locator("details.answer[open]").count() == 1
    assert visitor.locator(".waits").count() == waiting - 1


def test_the_facts_are_searched_by_all_words(built, visitor):
    visitor.goto((built / "facts.html").as_uri())
    total = visitor.locator("#facts tbody tr").count()
    visitor.get_by_label("Search the facts").fill("LBFGS closure")
    rows = visitor.locator("#facts tbody tr:visible")
    assert 0 < rows.count() < total
    assert all("lbfgs" in text.lower() and "closure" in text.lower() for text in rows.all_inner_texts())
    assert visitor.locator("#found").inner_text() == f"{rows.count()} of {total}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(built, chromium, scheme):
    from axe_playwright_python.sync_playwright import Axe

    context = chromium.new_context(color_scheme=scheme)
    page = context.new_page()
    found = []
    for name in (*SOME, "course/07_exactness"):
        page.goto((built / f"{name}.html").as_uri())
        page.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")  # colours that still change
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                found.append(f"{name}: {violation['id']}: {violation['nodes'][0]['html'][:200]}")
    context.close()
    assert found == []
