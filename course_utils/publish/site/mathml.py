"""A Sphinx extension that writes formulas as MathML, which browsers draw without a script or a font from a network."""

from typing import Any

from course_utils.publish import PublishError


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mathml(formula: str, as_block: bool) -> str:
    """A formula of LaTeX as MathML.

    Raises:
        PublishError: If docutils does not know a command of the formula.
    """
    from docutils.utils.math import MathError
    from docutils.utils.math.latex2mathml import tex2mathml

    try:
        return tex2mathml(formula.replace(r"\dots", r"\ldots"), as_block=as_block)
    except MathError as problem:
        raise PublishError(f"the formula {formula!r} cannot be drawn as MathML: {problem}") from problem


def _inline(translator: Any, node: Any) -> None:
    translator.body.append(mathml(node.astext(), as_block=False))
    _skip()


def _display(translator: Any, node: Any) -> None:
    translator.body.append(f'<div class="math">{mathml(node.astext(), as_block=True)}</div>')
    _skip()


def _skip() -> None:
    from docutils.nodes import SkipNode

    raise SkipNode
