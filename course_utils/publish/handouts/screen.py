"""What a notebook says of the screen, as paper says it: nobody clicks on a page, or runs it."""

import re

_SAID = {  # and what paper says instead
    r"Press \*Next\* and watch": "Watch",
    r"choose (\*[^*]+\*) above the buttons:": r"\1:",
    r"Then choose another version above the buttons, which runs the changed loop; but first say": (
        "Then take each of the versions that are named below it, and say"
    ),
    r"(?:Run|Unfold) the (?:folded )?cell(?:, run it|, unfold it)?, (?:and|then) fix (it|the walk)": r"Fix \1",
    r"where the dots are, and run the cell": "on the lines",
    r" and run the cell\b": "",
    r"Before you run the next cell": "Before you read on",
    r"Move the number of micro-batches and N, and look": "Look",
    r"The sliders show": "The notebook shows",
    r"\b([Tt])he cell (above|below)\b": r"\1he code \2",
    r"\b([Tt])he next cell\b": r"\1he code below",
}
_ONLY_THERE = r"click|Space\s+presses|buttons|[Uu]nfold|(?:It's|The\s+code\s+is)\s+folded|It\s+tries\s+your"
_MORE = r"(?:(?!\n\n)[^.?!])*"
_SENTENCE = rf"(?<!\S)\(?(?=[A-Z]){_MORE}?(?:{_ONLY_THERE}){_MORE}[.?!]\)?(?: |\n(?!\n))?"  # goes


def for_paper(text: str) -> str:
    """Prose without what only a screen can do.

    >>> for_paper("Write it where the dots are, and run the cell. A click unfolds the hint.\\n\\nSee the cell below.")
    'Write it on the lines.\\n\\nSee the code below.'
    """
    for said, instead in _SAID.items():
        text = re.sub(said.replace(" ", r"\s+"), instead, text)
    text = re.sub(_SENTENCE, "", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"^ +\n| +$", "", text, flags=re.M)).strip()
