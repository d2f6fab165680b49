"""Exercises of the kind "order these lines": an order, given by letters, becomes a function that really runs."""

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from course_utils.practice.judging import Mistake

_SEPARATORS = " \t\n,;:.-+>→'\"[]()"
_numbers = count()


def judge_order(
    answer: str | Sequence[str],
    lines: Mapping[str, str],
    header: str,
    judge: Callable[[Callable], object],
    makes: Mapping[str, str],
) -> str:
    """Judges the loop that an order makes of the lines, and returns the order's letters with spaces between.

    Args:
        answer: The order, as `letters` takes it.
        lines: By its letter, each line that may be used. One of them begins with `for`.
        header: The `def` line of the function.
        judge: Judges the function, and raises a `Mistake` for one that is wrong.
        makes: For each name that the lines give a value, the letter of the line that does.

    Raises:
        Mistake: As `letters`, `assemble` and `judge`; `no-loop` and `nested-loop` unless the loop's line is there once;
            `used-too-early` for a name that no line has made yet; `idle-line` for a line that could be left out.

    Example:
        >>> lines = {"A": "total += number", "B": "for number in numbers:", "C": "total = 0"}
        >>> def adds(function):
        ...     function([1, 2])
        >>> try:
        ...     judge_order("B A C", lines, "def add(numbers):", adds, {"total": "C", "number": "B"})
        ... except Mistake as mistake:
        ...     print(mistake.verdict.bug)
        used-too-early
    """
    order = letters(answer, lines)
    loop = next(letter for letter, line in lines.items() if line.startswith("for "))
    if loop not in order:
        raise Mistake("no-loop", f"no line of {' '.join(order)} repeats anything.")
    if order.count(loop) > 1:
        raise Mistake("nested-loop", f"line {loop} opens a second loop inside the first.")

    def judge_letters(order: str) -> None:
        try:
            judge(assemble(header, lines, order))
        except NameError as error:
            name = error.name or str(error).split("'")[1]
            uses = re.compile(rf"\b{name}\b")
            early = next(letter for letter in order if uses.search(lines[letter]) and letter != makes[name])
            message = f"line {early}, `{lines[early]}`, uses `{name}` before line {makes[name]} has made it."
            raise Mistake("used-too-early", message) from None

    judge_letters(order)
    if idle := idle_lines(order, judge_letters):
        what = f"{'lines' if len(idle) > 1 else 'line'} {', '.join(idle)}"
        raise Mistake("idle-line", f"every update is right, but so it is without {what}: leave out what does nothing.")
    return " ".join(order)


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
