"""Markdown and notebooks to HTML, with Sphinx, MyST-NB and the book theme."""

import io
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

from course_utils.publish import PublishError

TITLE = "Gradient accumulation and zeroing in PyTorch"


def require_tools() -> None:
    """Raises `PublishError` if the extra `site` is missing."""
    missing = [name for name in ("sphinx", "myst_nb", "sphinx_book_theme") if find_spec(name) is None]
    if missing:
        raise PublishError(f'{", ".join(missing)} cannot be imported; install with: pip install -e ".[site]"')


def render(source: Path, out: Path, on_pages: Callable[[int], Any] = lambda pages: None) -> None:
    """Makes HTML of a folder of pages.

    Args:
        source: The folder with `index.md`, and with the folders `static` and `extra`.
        out: Where the HTML is written.
        on_pages: Called as pages have been read, with their number. Processes of Sphinx's own read some at a time.

    Raises:
        PublishError: If Sphinx fails or warns: a link without a target, for example.
    """
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError

    warnings = io.StringIO()
    try:
        app = Sphinx(
            source,
            None,
            out,
            source.parent / f"{source.name}-doctrees",
            "html",
            _settings(),
            None,
            warnings,
            parallel=2,
        )
        app.connect("env-merge-info", lambda app, env, names, other: on_pages(len(names)))
        app.build()
    except SphinxError as problem:
        raise PublishError(f"Sphinx could not build the site: {problem}") from problem
    rmtree(out / "jupyter_execute", ignore_errors=True)  # figures, which lie in _images, too
    if warnings.getvalue():
        plain = re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue())
        raise PublishError(f"Sphinx warns:\n{plain}")


def _settings() -> dict[str, Any]:
    return {
        "project": TITLE,
        "author": "",
        "copyright": "code: MIT License; text and figures: CC BY 4.0",
        "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "course_utils.publish.site.mathml"],
        "html_math_renderer": "mathml",
        "nb_execution_mode": "off",
        "nb_ipywidgets_js": {},
        "myst_enable_extensions": ["dollarmath"],
        "myst_heading_anchors": 2,
        "autodoc_typehints": "signature",
        "autodoc_member_order": "bysource",
        "html_theme": "sphinx_book_theme",
        "html_title": TITLE,
        "html_theme_options": {
            "show_navbar_depth": 1,
            "show_toc_level": 1,
            "use_download_button": False,
            "navbar_persistent": [],  # the search is in the sidebar
        },
        "html_context": {"default_mode": "auto"},
        "default_role": "code",  # single backticks in docstrings
        "html_static_path": ["static"],
        "html_extra_path": ["extra"],
        "html_css_files": ["site.css"],
        "html_js_files": ["site.js"],
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "exclude_patterns": ["extra", "static"],
        "suppress_warnings": ["myst.header"],
    }
