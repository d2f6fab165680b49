"""The facts that the course teaches, a TOML file per notebook in `data/facts`, and the claims that they answer, in
`data/claims.csv`: what common sources say, in our words, with a verdict and the fact. Only this module reads them.

A table's name is the fact's id, which tags the cell that shows it (`claim:ID`). `falsifier` says how to make the fact
false: `breakage` names an entry of tests/breakages.py, or `new` replaces `old` in the cell; the cell must then fail.
"""

import csv
import tomllib
from dataclasses import dataclass
from typing import NamedTuple

from course_utils import data
from course_utils.publish import PublishError

BASES = ("executed", "recorded", "cited", "derived")
VERDICTS = ("true", "true-if", "imprecise", "wrong", "outdated", "missing")
_IN_WORDS = {"true-if": "true under conditions", "missing": "seldom said"}  # the others are words


@dataclass(frozen=True)
class Breakage:
    """Something to break in PyTorch or in the package, by its name in tests/breakages.py."""

    name: str


@dataclass(frozen=True)
class Edit:
    """A change to the source of the fact's cell."""

    old: str
    new: str


@dataclass(frozen=True)
class Fact:
    """A statement of the course, what is commonly believed instead, and how far to trust either.

    Args:
        id: Its name, as in the tag of its cell.
        notebook: The notebook that shows it, such as "02_zeroing".
        statement: What holds, with its scope.
        belief: What people say.
        verdict: What the belief is; one of `VERDICTS`.
        basis: What the statement rests on; one of `BASES`. It may say "measured" only if that is "executed".
        falsifier: What makes its cell fail. None only if the cell does not measure the fact.
    """

    id: str
    notebook: str
    statement: str
    belief: str
    verdict: str
    basis: str
    falsifier: Breakage | Edit | None

    def __post_init__(self):
        for what, value, known in (("verdict", self.verdict, VERDICTS), ("basis", self.basis, BASES)):
            if value not in known:
                raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")
        if self.basis != "executed" and "measured" in self.statement.lower():
            raise ValueError(f'only an executed fact may say "measured", and this one is {self.basis}')
        if self.basis == "executed" and self.falsifier is None:
            raise ValueError("an executed fact needs a falsifier")

    @property
    def judged(self) -> str:
        """What the belief is, for people."""
        return _IN_WORDS.get(self.verdict, self.verdict)


def read_facts() -> dict[str, Fact]:
    """All facts by id, notebook by notebook.

    Raises:
        PublishError: If there are none, a file is no TOML, or a fact is incomplete or has the id of another.
    """
    found: dict[str, Fact] = {}
    paths = sorted((data.folder() / "facts").glob("*.toml"))
    if not paths:
        raise PublishError(f"there are no facts in {data.folder() / 'facts'}")
    for path in paths:
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise PublishError(f"{path} cannot be read as TOML: {problem}") from problem
        for name, table in tables.items():
            if name in found:
                raise PublishError(f"{path}: {name}: the id is taken by a fact of {found[name].notebook}")
            try:
                found[name] = _fact(name, path.stem, table)
            except (AttributeError, TypeError, ValueError) as problem:
                raise PublishError(f"{path}: {name}: {problem}") from problem
    return found


class Claim(NamedTuple):
    """What a common source says: its number there, what kind of statement it is, a verdict, and the id of a fact."""

    id: str
    kind: str
    claim: str
    verdict: str
    fact: str

    @property
    def judged(self) -> str:
        """What the claim is, for people."""
        return "sources disagree" if self.verdict == "resolve" else _IN_WORDS.get(self.verdict, self.verdict)


def read_claims() -> list[Claim]:
    """All claims; `PublishError` if the table cannot be read."""
    path = data.folder() / "claims.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Claim(**row) for row in csv.DictReader(file)]
    except (OSError, TypeError) as problem:
        raise PublishError(f"{path} cannot be read as a table of claims: {problem}") from problem


def _fact(name: str, notebook: str, table: dict) -> Fact:
    required = {"statement", "belief", "verdict", "basis"}
    if not required <= table.keys() <= required | {"falsifier"}:
        raise ValueError(f"expected {', '.join(sorted(required))} and falsifier, got {', '.join(sorted(table))}")
    falsifier = _falsifier(table["falsifier"]) if "falsifier" in table else None
    return Fact(name, notebook, **table | {"falsifier": falsifier})


def _falsifier(table: dict[str, str]) -> Breakage | Edit:
    match table:
        case {"breakage": str(name), **rest} if not rest:
            return Breakage(name)
        case {"old": str(old), "new": str(new), **rest} if not rest:
            return Edit(old, new)
    raise ValueError(f"falsifier must hold `breakage`, or `old` and `new`, got {table}")
