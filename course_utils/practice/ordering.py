"""Exercises of the kind "order these lines": an order, given by letters, becomes a function that really runs."""

import re
from collections.abc import Callable, Mapping, Sequence

from course_utils.practice.bench import Mistake
from course_utils.source import function

_SEPARATORS = " \t\n,;:.-+>→'\"[]()"


def require_one_loop(order: str, lines: Mapping[str, str]) -> None:
    """Raises a `Mistake` unless the line that begins with `for` is there once."""
    loop = next(letter for letter, line in lines.items() if line.startswith("for "))
    if loop not in order:
        raise Mistake("no-loop", f"no line of {' '.join(order)} repeats anything.")
    if order.count(loop) > 1:
        raise Mistake("nested-loop", f"line {loop} opens a second loop inside the first.")


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


def assemble(header: str, lines: Mapping[str, str], order: str, makes: Mapping[str, str]) -> Callable:
    """The function whose body is made of these lines, in this order.

    A line that ends in a colon opens a block, and everything after it is inside. So an order needs no indentation.

    Args:
        header: The `def` line of the function.
        lines: By its letter, each line that may be used.
        order: Letters of lines. A letter may come twice.
        makes: For each name that the lines give a value, the letter of the line that does.

    Raises:
        Mistake: `empty-block` if nothing comes after a line that opens a block; `used-too-early` for a line that uses
            a name before the line that makes it.

    Example:
        >>> from inspect import getsource
        >>> lines = {"A": "total += number", "B": "for number in numbers:", "C": "total = 0"}
        >>> add = assemble("def add(numbers):", lines, "CBA", {"number": "B"})
        >>> print(getsource(add))
        def add(numbers):
            total = 0
            for number in numbers:
                total += number
    """
    for name, maker in makes.items():
        for early in order.partition(maker)[0]:
            if re.search(rf"\b{name}\b", lines[early]):
                message = f"line {early}, `{lines[early]}`, uses `{name}` before line {maker} has made it."
                raise Mistake("used-too-early", message)
    source, depth = [header], 1
    for letter in order:
        source.append("    " * depth + lines[letter])
        depth += lines[letter].endswith(":")
    if lines[order[-1]].endswith(":"):
        message = f"nothing comes after line {order[-1]}, `{lines[order[-1]]}`, so it repeats nothing."
        raise Mistake("empty-block", message)
    return function("\n".join(source), {}, "your order")
