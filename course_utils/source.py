"""Edited source texts, and functions from them, with their lines where tracebacks and `inspect` look for them."""

import linecache
import re
from collections.abc import Callable
from itertools import count
from typing import Any

_numbers = count()


def edited(text: str, old: str, new: str) -> str:
    """A source in which something that stands there once is replaced.

    Args:
        text: The source.
        old: Its lines after the first are found however they are indented.
        new: Its lines after the first are indented as the first one is, and by what they begin with. A line of which
            nothing is left goes.

    Example:
        >>> edited("for x in xs:\\n    f(x)\\n    g(x)\\n", "f(x)\\ng(x)", "if x:\\n    g(x)")
        'for x in xs:\\n    if x:\\n        g(x)\\n'
    """
    pattern = r"\n *".join(re.escape(line) for line in re.split(r"\n *", old))
    found = list(re.finditer(pattern, text))
    assert len(found) == 1, f"{old!r} is {len(found)} times in\n{text}"
    before, after = text[: found[0].start()], text[found[0].end() :]
    indent = re.match(" *", before.rpartition("\n")[2])[0]
    text = before + new.replace("\n", f"\n{indent}") + after
    return text if new else re.sub(r"\n +(?=\n)", "", text)


def function(text: str, names: dict[str, Any], title: str = "made") -> Callable:
    """The function that a source text defines.

    Args:
        text: Begins with `def`.
        names: Its global names.
        title: Of the text, where a traceback names it.

    Example:
        >>> function("def double(x):\\n    return 2 * x\\n", {})(21)
        42
    """
    file, found = f"<{title} {next(_numbers)}>", {}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names, found)
    return found[text.partition("def ")[2].partition("(")[0]]
