"""The sheet for the wall: ledger, loop, six bugs, what is exact; overleaf pitfalls and cases."""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.nn.functional import cross_entropy

from course_utils import record
from course_utils.zoo import ZOO
from course_utils.zoo.pitfalls import PITFALLS
from course_utils.zoo.props import classifier, digit_batches
from editions import div, raw, table
from gradaudit.rules import RULES
from notebooks import ROOT, Notebook, repository, text_of

# How far a window's gradient is from the large batch's, and that one from its own in float64: see
# `train_epoch`.
EXACT = {"float64": ("3e-16", ""), "float32": ("2e-7", "2e-7"), "bfloat16 autocast": ("3e-3", "4e-3")}
WRONG = ("0.60", "0.77")  # the libraries' plain means over unequal micro-batches: data/measurements/side_by_side.json
BUGS = {  # by the shape that it leaves in the ledger: a loop of the zoo, and how many of its micro-batches are drawn
    # The rules that most verdicts of data/measurements/real_code.csv name, without those that no
    # norm of .grad shows.
    "Keeps the tail for later": ("tail-in-the-next-epoch", 15),
    "Never divides by N": ("never-divided", 8),
    "Averages token means": ("mean-of-means", 8),
    "Steps at batch\N{NO-BREAK SPACE}0": ("step-at-batch-zero", 9),
    "Clips every micro-batch": ("clipped-in-every-micro-batch", 8),
    "Zeroes too often": ("zeroed-in-every-micro-batch", 8),
}
TEMPLATE = ROOT / "docs" / "paper" / "cheatsheet.md"

Point = tuple[float, float, str, int]  # a micro-batch, the norm of `.grad`, the kind of event, micro-batches in `.grad`


def markdown(books: dict[str, Notebook]) -> str:
    """Both pages. The loops that the front draws run here."""
    page = TEMPLATE.read_text(encoding="utf-8")
    data = json.dumps(front(), ensure_ascii=False)
    data = re.sub(r"\d\.\d{6,}", lambda found: f"{float(found[0]):.5f}", data)  # the same on every machine
    data = json.dumps(data, ensure_ascii=False)
    page = page.replace(f"```python\n{loop()}```", raw(f"#front(json(bytes({data})))"))
    page = page.replace("<!-- decisions -->", div("decisions", table(decisions(books["07_exactness"]))))
    rows = ((text.rstrip(".") for text in pitfall.row(specimen)) for specimen, pitfall in PITFALLS.items())
    page = page.replace("<!-- pitfalls -->", div("pitfalls", table([["symptom", "cause", "check", "fix"], *rows])))
    return page.replace("<!-- rules -->", ", ".join(f"`{name}`" for name in RULES))


def loop() -> str:
    """The loop of the sheet. A comment `# name: text` at the end of a line is the line's label."""
    return re.search(r"^```python\n(.*?)^```$", TEMPLATE.read_text(encoding="utf-8"), flags=re.M | re.S)[1]


def bugs() -> list[dict]:
    """The six bugs by their silhouettes. Their loops run here."""
    found = []
    for name, (specimen, most) in BUGS.items():
        rule = ZOO[specimen].rule
        buggy, fixed = ([p for p in points if p[0] < most] for points in silhouettes(specimen))
        shown = {"name": name, "specimen": specimen, "rule": rule, "fix": RULES[rule].fix, "micro_batches": most}
        found.append(shown | {"buggy": buggy, "fixed": fixed})
    return found


def front() -> dict:
    """What the first page shows."""
    lines = []
    for line in loop().splitlines():
        code, _, label = line.partition("  # ")
        name, _, words = label.partition(": ")
        lines.append((code, name, words))
    return {
        "ledgers": ledgers(),
        "loop": lines,
        "bugs": bugs(),
        "exact": EXACT,
        "wrong": WRONG,
        "version": tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
        "torch": torch.__version__.partition("+")[0],
        "address": f"github.com/{repository()}" if repository() else "",
    }


def ledgers() -> dict[str, list[Point]]:
    """One loop three times: with zeroing after every step, in windows of 4, and without zeroing.

    The windows hold the images of the first two large batches, in micro-batches of a quarter of
    their size.
    """

    def train(batches: Iterable, n: int = 1, zero: bool = True) -> None:
        model, optimizer = classifier()
        for k, (images, labels) in enumerate(batches, start=1):
            (cross_entropy(model(images), labels) / n).backward()
            if k % n == 0:
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

    large, small = digit_batches(4, size=32), digit_batches(8, size=8)
    return {
        "zeroed": points(lambda: train(large)),
        "windows": points(lambda: train(small, n=4)),
        "never": points(lambda: train(large, zero=False)),
    }


def silhouettes(specimen: str) -> Iterator[list[Point]]:
    """The lines of a buggy loop and of its fixed twin."""
    return map(points, (ZOO[specimen].buggy, ZOO[specimen].fixed))


def points(train: Callable[[], object]) -> list[Point]:
    """A loop's trace as a line to draw: the k-th backward pass is at k, from 0, the rest between.

    So a buggy loop and its fixed twin can be drawn over each other, micro-batch by micro-batch.
    """
    with record() as trace:
        train()
    events = trace.on()
    starts = [index for index, event in enumerate(events) if event.kind == "backward"]
    found = []
    for k, (start, end) in enumerate(zip(starts, [*starts[1:], len(events)], strict=True)):
        for j, event in enumerate(events[start:end]):
            found.append((k + j / (end - start), event.norm, event.kind, event.held))
    return found


def decisions(book: Notebook) -> Iterator[tuple[str, str, str]]:
    """The rows of notebook 07's table: case, whether the plain division is exact, what to do."""
    shown = next(o for cell in book.code for o in cell.outputs if "<table" in o.get("data", {}).get("text/html", ""))
    _, *rows = (line.split(" | ") for line in text_of(shown).splitlines() if " | " in line)
    yield "you have", "loss / N", "do this"
    for case, divided, advice, *_ in rows:
        yield case, _alone(divided.split(",")[0]) or "–", _alone(advice)


def _alone(text: str) -> str:
    """A text without the clauses that send the reader to a notebook.

    >>> _alone("divide by what it holds, or see 06"), _alone("see 10")
    ('divide by what it holds', '')
    """
    return "; ".join(clause for clause in re.split("; |, or (?=see )", text) if not re.search(r"\b[01]\d\b", clause))
