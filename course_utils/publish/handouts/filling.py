"""How full the pages of a document are, seen from far away."""

import re
from io import BytesIO

DPI = 20
_TOP, _BOTTOM, _GAP = 24, 21, 12  # mm: the margins of a handout, and how much white between two lines is a gap
_MOST_EMPTY, _LEAST_FULL = 0.325, 0.26  # of any page, and of the last: a third and a quarter, with a margin


def emptiness(page: bytes) -> float:
    """The share of a page, without its margins, that is white from side to side.

    Args:
        page: A PNG image of `DPI` dots per inch.
    """
    from PIL import Image

    image = Image.open(BytesIO(page)).convert("L")
    millimetre = DPI / 25.4
    top, bottom = int(_TOP * millimetre), image.height - int(_BOTTOM * millimetre)
    body = image.crop((0, top, image.width, bottom))
    inked = "".join(map(str, body.point(lambda grey: grey <= 253).getprojection()[1]))
    white = sum(len(gap) for gap in re.findall("0+", inked) if len(gap) > _GAP * millimetre)
    return white / body.height


def badness(pages: list[bytes], most_pages: int) -> float:
    """How far a document is from one without a page that looks forgotten: 0 is good.

    Args:
        pages: As for `emptiness`.
        most_pages: How many it may have.
    """
    *others, last = map(emptiness, pages)
    too_empty = sum(max(0, empty - _MOST_EMPTY) for empty in others) + max(0, last - (1 - _LEAST_FULL))
    return too_empty + 10 * max(0, len(pages) - most_pages)
