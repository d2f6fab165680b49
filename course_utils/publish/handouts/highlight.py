"""The words of code that paper sets apart. Typst could find them too, in a second a notebook."""

from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Operator, String

_LOOKS = {Keyword: "word", Operator.Word: "word", String: "string", Comment: "comment"}
_PYTHON = PythonLexer(stripnl=False, ensurenl=False)

Run = tuple[int, int, str]  # the first byte, the byte after the last, and the name of a look in the template


def highlighted(source: str) -> list[list[Run]]:
    """For each line of a source what is set apart in it.

    >>> highlighted("if a:  # why\\n    return '''é\\n'''")
    [[(0, 2, 'word'), (7, 12, 'comment')], [(4, 10, 'word'), (11, 16, 'string')], [(0, 3, 'string')]]
    """
    lines, place = [[]], 0
    for _, token, text in _PYTHON.get_tokens_unprocessed(source):
        look = next((look for kind, look in _LOOKS.items() if token in kind), "")
        for number, piece in enumerate(text.split("\n")):
            if number:
                lines.append([])
                place = 0
            end = place + len(piece.encode())
            if look and piece:
                before = lines[-1].pop() if lines[-1] and lines[-1][-1][1:] == (place, look) else (place,)
                lines[-1].append((before[0], end, look))
            place = end
    return lines
