"""Edits source texts, makes functions of them that tracebacks can show, and counts lines that run."""

import inspect
import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any


def edited(text: str, old: str, new: str) -> str:
    """A source with one replacement.

    Args:
        text: The source.
        old: Text that occurs once, its lines indented as the line where it begins.
        new: Replacement, indented in the same way. Lines that become empty are removed.

    Raises:
        ValueError: If `old` doesn't occur exactly once.

    Example:
        >>> edited("for x in xs:\\n    f(x)\\n    g(x)\\n", "f(x)\\ng(x)", "if x:\\n    g(x)")
        'for x in xs:\\n    if x:\\n        g(x)\\n'
    """
    begins = text.partition(old.partition("\n")[0])[0].rpartition("\n")[2]  # its line, up to it
    old, new = (part.replace("\n", "\n" + re.match(" *", begins)[0]) for part in (old, new))
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is {text.count(old)} times in\n{text}")
    return re.sub(r"\n +(?=\n)", "", text.replace(old, new))


def function(text: str, names: dict[str, Any], title: str = "made") -> Callable:
    """The function that a source text defines.

    Args:
        text: Source that begins with `def`.
        names: Global names of the function.
        title: Name of the text in a traceback; of two with one name the later is shown.

    Example:
        >>> function("def double(x):\\n    return 2 * x\\n", {})(21)
        42
    """
    file, found = f"<{title}>", {}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names, found)
    return found[text.partition("def ")[2].partition("(")[0]]


def count_lines(run: Callable[[], object], *functions: Callable) -> list[list[tuple[str, int]]]:
    """The source lines of functions, each with how often it ran.

    Args:
        run: Calls the functions, directly or not.
        *functions: Plain Python functions.

    Example:
        >>> def double(xs):
        ...     for x in xs:
        ...         x *= 2
        >>> [[count for _, count in lines] for lines in count_lines(lambda: double([1, 2]), double)]
        [[0, 3, 2]]
    """
    counts: Counter = Counter()
    codes = {function.__code__ for function in functions}

    def trace(frame, event, _):
        if frame.f_code in codes:
            counts[frame.f_code, frame.f_lineno] += event == "line"
            return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    found = []
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        numbered = [(line.rstrip(), counts[function.__code__, first + k]) for k, line in enumerate(lines)]
        found.append([line for line in numbered if line[0]])
    return found
