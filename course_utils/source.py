"""Edits source texts, and makes functions of them that tracebacks and `inspect` can show."""

import linecache
import re
from collections.abc import Callable
from itertools import count
from typing import Any

_numbers = count()


def edited(text: str, old: str, new: str) -> str:
    """A source with one replacement.

    Args:
        text: The source.
        old: Text that occurs once; indentation after its first line is ignored.
        new: Replacement, indented as the first line. Lines that become empty are removed.

    Raises:
        ValueError: If `old` doesn't occur exactly once.

    Example:
        >>> edited("for x in xs:\\n    f(x)\\n    g(x)\\n", "f(x)\\ng(x)", "if x:\\n    g(x)")
        'for x in xs:\\n    if x:\\n        g(x)\\n'
    """
    pattern = r"\n *".join(re.escape(line) for line in re.split(r"\n *", old))
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise ValueError(f"{old!r} is {len(found)} times in\n{text}")
    before, after = text[: found[0].start()], text[found[0].end() :]
    indent = re.match(" *", before.rpartition("\n")[2])[0]
    text = before + new.replace("\n", f"\n{indent}") + after
    return text if new else re.sub(r"\n +(?=\n)", "", text)


def function(text: str, names: dict[str, Any], title: str = "made") -> Callable:
    """The function that a source text defines.

    Args:
        text: Source that begins with `def`.
        names: Global names of the function.
        title: Name of the text in a traceback.

    Example:
        >>> function("def double(x):\\n    return 2 * x\\n", {})(21)
        42
    """
    file, found = f"<{title} {next(_numbers)}>", {}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names, found)
    return found[text.partition("def ")[2].partition("(")[0]]
