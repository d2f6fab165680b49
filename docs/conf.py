"""The course as a website: `sphinx-build -W docs build/site`. It needs no network."""

import re
import shutil
import sys
from pathlib import Path

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))
import pages
from notebooks import ROOT, read_notebooks, relinked, repository

project = html_title = "Gradient accumulation and zeroing in PyTorch"
author = ""
copyright = "the course's authors. Code: MIT License; text and figures: CC BY 4.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["instructor", "paper"]
suppress_warnings = ["myst.header"]
nb_execution_mode = "off"
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
default_role = "code"  # single backticks in docstrings
smartquotes_action = "qe"  # and no dash out of `--window`
html_math_renderer = "mathml"
html_theme = "sphinx_book_theme"
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 1,
    "use_download_button": False,
    "navbar_persistent": [],  # the search is in the sidebar
}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = html_show_sourcelink = False

MADE = ("course/", "rules/")  # folders of pages that are made
BOOKS = read_notebooks()
INSERTED: dict[str, str] = {}


def write_pages(app, config):
    pages.write(BOOKS)
    INSERTED.update(pages.inserted(BOOKS))


def written_by_hand(app, env, *changes):
    """These are read again in every build, since what they leave open may have changed."""
    return [name for name in env.found_docs if not name.startswith(MADE)]


def complete(app, name, source):
    """Fills in what a written page leaves open; links to notebooks lead to their pages."""
    if name.startswith(MADE):
        return
    text = re.sub(r"<!-- (\w+) -->", lambda found: INSERTED.get(found[1], found[0]), source[0])
    source[0] = relinked(text, "[{}](course/{}.ipynb)".format)


def without_rooms(app, what, name, thing, options, lines):
    """The package's page introduces it; a module's docstring is for those who read its source."""
    if what == "module":
        lines.clear()


def copy_downloads(app, problem):
    for folder in ("handouts", "colab"):
        shutil.rmtree(app.outdir / folder, ignore_errors=True)
        if (ROOT / "build" / folder).is_dir():
            shutil.copytree(ROOT / "build" / folder, app.outdir / folder)
    if repository():  # from which a downloaded notebook installs the course
        for book in BOOKS.values():
            (app.outdir / "notebooks").mkdir(exist_ok=True)
            shutil.copy(book.path, app.outdir / "notebooks")


def mathml(translator, node):
    """Browsers draw MathML without a script or a font from a network."""
    as_block = node.tagname == "math_block"
    formula = tex2mathml(node.astext().replace(r"\dots", r"\ldots"), as_block=as_block)
    translator.body.append(f'<div class="math">{formula}</div>' if as_block else formula)
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("config-inited", write_pages)
    app.connect("env-get-outdated", written_by_hand)
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", without_rooms)
    app.connect("build-finished", copy_downloads)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
