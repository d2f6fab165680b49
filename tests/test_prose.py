"""What prose, captions, cards and links say, against what stands beside them."""

import ast
import doctest
import re
import tomllib
from pathlib import Path

import prose
import pytest
from course import FACTS, NOTEBOOKS
from prose import after_code, numbers, printed, seen, stands_in

from course_utils.publish.notebook import as_course, claims, text_of

HERE = Path(__file__).parent
LISTED = tomllib.loads((HERE / "numbers.toml").read_text(encoding="utf-8"))
SCOPES = tomllib.loads((HERE / "scopes.toml").read_text(encoding="utf-8"))
SCOPE = re.compile(
    r"\b(?:on (?:a |the )?(?:CPU|GPU)s?|on CUDA|in b?float(?:16|32|64)|by default|on (?:one|two) (?:gloo )?ranks?|"
    r"under autocast|(?:with(?:out)?|under) (?:plain )?(?:SGD|Adam\w*|momentum|weight decay|foreach|fused))\b",
    flags=re.IGNORECASE,
)
REASONS = {"code", "report", "record", "worked", "known", "given", "year"}
REFERENCES = (HERE / "references.txt").read_text(encoding="utf-8").splitlines()

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=NOTEBOOKS)


def phrases(notebook) -> list[str]:
    """The exceptions: phrases whose numbers rest on something else."""
    return [phrase for of_a_reason in LISTED.get(notebook.name, {}).values() for phrase in of_a_reason]


def unfounded(notebook, text: str, beside: str) -> list[str]:
    """The numbers in a text that don't stand in what is beside it, but for the exceptions."""
    return [number for number in numbers(text, phrases(notebook)) if not stands_in(number, beside)]


def facts_of(notebook) -> list:
    return [fact for fact in FACTS.values() if fact.notebook == notebook.name]


def test_numbers_are_found_and_compared_as_the_examples_say():
    assert doctest.testmod(prose).failed == 0


@each_notebook
def test_a_number_after_a_cell_stands_in_what_it_has_printed(notebook):
    for text, beside in after_code(notebook):
        assert not unfounded(notebook, text, beside), text


@each_notebook
def test_a_number_with_a_unit_has_it_in_the_code_or_an_output(notebook):
    beside = "\n".join(map(seen, notebook.code))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            found = unfounded(notebook, cell.source, beside)
            assert not [number for number in found if re.search(rf"(?:{prose.UNITS})$", number)], cell.source


def captions(notebook):
    """Each figure's caption, and what the cells around it have printed."""
    for place, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}) and not as_course(output):
                around = notebook.cells[max(0, place - 3) : place + 2]
                yield text_of(output).removeprefix("Figure: "), "\n".join(map(printed, around))


@each_notebook
def test_a_number_in_a_caption_stands_in_an_output_around_it(notebook):
    for caption, around in captions(notebook):
        assert not unfounded(notebook, caption, around), caption


@each_notebook
def test_a_number_in_a_fact_stands_in_its_cell_or_beside_it(notebook):
    for fact in facts_of(notebook):
        places = [place for place, cell in enumerate(notebook.cells) if fact.id in claims(cell)]
        near = "\n".join(seen(cell) for place in places for cell in notebook.cells[place - 1 : place + 2])
        assert not unfounded(notebook, fact.statement, near), fact.id


@each_notebook
def test_a_fact_says_how_far_it_holds_as_the_list_of_scopes_has_it(notebook):
    said = {fact.id: SCOPE.findall(fact.statement.lower()) for fact in facts_of(notebook)}
    listed = {name: [scope.lower() for scope in scopes] for name, scopes in SCOPES.get(notebook.name, {}).items()}
    assert {name: scopes for name, scopes in said.items() if scopes} == listed, "tests/scopes.toml has other scopes"


@each_notebook
def test_every_exception_has_a_reason_and_is_one(notebook):
    code = "\n".join([*(cell.source for cell in notebook.code), *(fact.statement for fact in facts_of(notebook))])
    texts = [notebook.prose, *(caption for caption, _ in captions(notebook))]
    said = "\n".join(map(prose.plain, [*texts, *(fact.statement for fact in facts_of(notebook))]))
    for reason, found in LISTED.get(notebook.name, {}).items():
        assert reason in REASONS
        for phrase in found:
            assert numbers(phrase), phrase
            assert phrase in said, phrase
            assert reason != "code" or all(stands_in(number, code) for number in numbers(phrase)), phrase


@each_notebook
def test_links_to_notebooks_say_which(notebook):
    """By its name or its number; in words of their own only where the text says what is taught there."""
    own = {"mixed precision": "05b_loss_scaling"}
    for text, target in re.findall(r"\[([^\[\]]+)\]\((\w+)\.ipynb[^)]*\)", notebook.prose):
        assert target in (text, own.get(text)) or target.split("_")[0] == text, text


@each_notebook
def test_the_text_of_a_link_agrees_with_its_target(notebook):
    for text, target in re.findall(r"\[([^\[\]]+)\]\((https?://[^)\s]+)\)", notebook.prose):
        repository, mark, _ = text.partition("#")
        if mark:
            assert re.search(rf"/{re.escape(repository or target.split('/')[4])}/(?:issues|pull)/", target), text
        paper = re.search(r"arxiv\.org/abs/(\d\d)", target)
        for number in re.findall(r"\d+(?:\.\d+)*", text):
            years = [2000 + int(paper[1]), 2001 + int(paper[1])] if paper else []  # printed a year later, at most
            assert int(float(number)) in years if len(number) == 4 and years else says(target, number), text


def says(target: str, number: str) -> bool:
    return bool(re.search(rf"(?<!\d){re.escape(number)}(?!\d)", target))


def test_every_address_is_in_the_list_of_references_and_each_of_these_is_cited():
    """A digit of an issue's number is easily lost, and the text then follows: the list has each address once more."""
    cited = set().union(*(re.findall(r"\]\((https?://[^)\s]+)\)", book.prose) for book in NOTEBOOKS.values()))
    assert sorted(cited, key=str.lower) == REFERENCES


@each_notebook
def test_every_step_that_is_named_is_there(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for steps in re.findall(r"\bSteps? (\d+(?:(?:, \d+)*,? (?:and|to|or) \d+)?)", cell.source):
                named = {f"Step {number}" for number in re.findall(r"\d+", steps)}
                assert named <= set(notebook.headings), steps


@each_notebook
def test_an_answer_that_is_revealed_is_computed(notebook):
    for cell in notebook.code:
        for node in ast.walk(ast.parse(cell.source)):
            match node:
                case ast.Call(ast.Attribute(attr="reveal"), [answer, *_]):
                    assert any(isinstance(part, ast.Name) and part.id not in BUILT_IN for part in ast.walk(answer))


BUILT_IN = set(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


@each_notebook
def test_no_assertion_is_content_with_something_that_is_not_none(notebook):
    for cell in notebook.code:
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Assert):
                for part in ast.walk(node.test):
                    match part:
                        case ast.Compare(left, [*_, ast.IsNot()], [*_, ast.Constant(None)]):
                            assert ast.unparse(left).endswith(".grad"), ast.unparse(node)
