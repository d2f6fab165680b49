"""Exercises of the kind "order these lines": an order, given by letters, becomes a function that really runs."""

import linecache
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from course_utils.practice.judging import Mistake

_SEPARATORS = " \t\n,;:.-+>→'\"[]()"
_numbers = count()


def letters(answer: str | Sequence[str], lines: Mapping[str, str]) -> str:
    """The letters of an answer, such as "B A D", "b, a, d" or ["B", "A", "D"], as "BAD".

    Raises:
        Mistake: `not-attempted` without any letter; `wrong-type` for a list of something else than texts;
            `unknown-line` for a letter that stands before none of the lines.
    """
    if not all(isinstance(part, str) for part in answer):
        raise Mistake("wrong-type", f"expected letters, such as 'B A D', got {answer!r}.")
    order = "".join(letter for letter in "".join(answer).upper() if letter not in _SEPARATORS)
    if not order or set(order) == {"…"}:
        raise Mistake("not-attempted", "there are no letters in your answer yet.")
    for letter in order:
        if letter not in lines:
            raise Mistake("unknown-line", f"no line is called {letter!r}, only {', '.join(lines)}.")
    return order


def assemble(header: str, lines: Mapping[str, str], order: str) -> Callable:
    """The function whose body is made of these lines, in this order.

    A line that ends in a colon opens a block, and everything after it is inside. So an order needs no indentation.

    Args:
        header: The `def` line of the function.
        lines: By its letter, each line that may be used.
        order: Letters of lines. A letter may come twice.

    Raises:
        Mistake: `empty-block` if nothing comes after a line that opens a block.

    Example:
        >>> lines = {"A": "total += number", "B": "for number in numbers:", "C": "total = 0"}
        >>> add = assemble("def add(numbers):", lines, "CBA")
        >>> print(listing(add))
        def add(numbers):
            total = 0
            for number in numbers:
                total += number
    """
    source, depth = [header], 1
    for letter in order:
        source.append("    " * depth + lines[letter])
        depth += lines[letter].endswith(":")
    if lines[order[-1]].endswith(":"):
        raise Mistake(
            "empty-block", f"nothing comes after line {order[-1]}, `{lines[order[-1]]}`, so it repeats nothing."
        )
    file, text = f"<your order {next(_numbers)}>", "\n".join(source)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
    names: dict = {}
    exec(compile(text, file, "exec"), names)
    function = names[header.removeprefix("def ").partition("(")[0]]
    function.listing = text
    return function


def listing(function: Callable) -> str:
    """The lines of a function that `assemble` has made."""
    return function.listing


def idle_lines(order: str, judge: Callable[[str], object]) -> str:
    """The letters that an order could do without: it passes the same judge when one of them is left out.

    Args:
        order: An order that passes.
        judge: Raises a `Mistake` for an order that does not.
    """
    idle = []
    for place, letter in enumerate(order):
        try:
            judge(order[:place] + order[place + 1 :])
        except Exception:  # without this line it is wrong, or no loop at all
            continue
        idle.append(letter)
    return "".join(idle)
