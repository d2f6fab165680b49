"""The notebooks' shape: executed, clean, folded, and every fact shown by a cell of its own."""

import ast
import re
from collections.abc import Iterator

import pytest

from cells import run
from course import FACTS, NOTEBOOKS
from execute import KERNEL, WIDGET
from notebooks import ROOT, claims, is_folded, reading, relinked, tags
from notebooks import displays as shown_by

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=NOTEBOOKS)


def text_of(cell) -> str:
    """All that a cell shows as text."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text", ""))
        parts += [content for kind, content in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)


def displays(cell, kind) -> list[dict]:
    return [shown for shown in shown_by(cell) if shown["kind"] == kind]


@each_notebook
def test_every_code_cell_was_executed_in_order(notebook):
    assert [cell.execution_count for cell in notebook.code] == list(range(1, len(notebook.code) + 1))


@each_notebook
def test_nothing_is_stored_that_differs_from_run_to_run(notebook):
    assert set(notebook.node.metadata) == {"kernelspec", "language_info"}
    assert notebook.node.metadata.kernelspec == KERNEL
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags", "jupyter", "cellView"}
        assert ("cellView" in cell.metadata) == is_folded(cell, "source"), "folded in Colab, too"
        for output in cell.get("outputs", []):
            assert WIDGET not in output.get("data", {})
            assert output.get("name") != "stderr", "a notebook must not write to stderr: nbval compares it"
        if cell.cell_type == "code":
            text = re.sub(r"base64,[\w+/=]+", "", text_of(cell))
            found = re.search(r"0x[0-9a-f]{6,}|[A-Z]:\\|/(home|root|tmp|usr|work|content)/|Box\(|<Figure", text)
            assert not found, f"{found} in the output of: {cell.source[:80]}"


@each_notebook
def test_what_gives_an_answer_away_is_folded(notebook):
    for cell in notebook.code:
        if ".reveal(" in cell.source:  # one that explains itself brings a fold of its own
            explains = any("because" in shown for shown in displays(cell, "reveal"))
            assert is_folded(cell, "source" if explains else "outputs"), f"the reveal shows: {cell.source[:80]}"
            assert not explains or len(cell.outputs) == 1, "what an answer's cell prints shows below the fold"
        if "solution" in tags(cell):
            for part in ("source", "outputs"):
                assert is_folded(cell, part), f"the solution's {part} show: {cell.source[:80]}"
        if cell.source.startswith("recall("):
            assert is_folded(cell, "source"), "the answers of the cards show"


@each_notebook
def test_what_is_asked_and_answered_is_stored_as_data_beside_its_text(notebook):
    calls = {"prediction": r"\bpredict\(", "reveal": r"\.reveal\(", "verdict": r"\bcheck\("}
    for cell in notebook.code:
        for kind, call in calls.items():
            assert len(displays(cell, kind)) >= bool(re.search(call, cell.source)), f"{kind}: {cell.source[:80]}"
    assert len(notebook.predictions) == sum(cell.source.count("predict(") for cell in notebook.code)
    asked = [prediction["question"] for prediction in notebook.predictions]
    assert sorted(reveal["question"] for reveal in notebook.displays("reveal")) == sorted(asked)


@each_notebook
def test_every_exercise_has_a_stub_and_a_checked_solution(notebook):
    checks = [(cell, verdict) for cell in notebook.code for verdict in displays(cell, "verdict")]
    solved, answers = {True: [], False: []}, {}
    for cell, verdict in checks:
        is_solution = "solution" in tags(cell)
        name = re.search(rf'check\("{verdict["exercise"]}", (\w+)', cell.source)[1]
        assert answers.setdefault(verdict["exercise"], name) != name or not is_solution, "it would replace the answer"
        solved[is_solution].append(verdict["exercise"])
        assert is_solution == bool(re.search(r"assert check\(.*, scored=False\)", cell.source))
        assert is_solution == cell.source.startswith("# Solution\n"), "so that check knows it from an answer"
        assert verdict["passed"] == is_solution, verdict
        if not is_solution:
            assert verdict["bug"] == "not-attempted", verdict
    assert solved[True] == solved[False], "every stub is followed by its solution"


@each_notebook
def test_an_exercises_cell_needs_nothing_but_the_set_up_cell(notebook, as_in_a_kernel):
    """After a restart a learner runs these two; an untouched stub must then be not done yet."""
    for cell in notebook.code:
        if displays(cell, "verdict") and "solution" not in tags(cell):
            names: dict = {"__name__": "__main__"}
            run(notebook.code[0].source, names)
            run(cell.source, names)
            verdict = names["_"]
            assert verdict.bug == "not-attempted", verdict


@each_notebook
def test_the_title_states_the_minutes_that_it_takes(notebook):
    assert notebook.minutes == pytest.approx(reading(notebook).minutes, abs=1.5)


@each_notebook
def test_a_topic_ends_with_the_versions_of_which_it_speaks(notebook):
    if not notebook.numbered:
        line = notebook.cells[-1].source.splitlines()[-1]
        assert line.startswith("*As of November 2026: torch "), line
        pins = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for library, version in re.findall(r"(\w+) (\d+\.\d+\.\d+)", line):
            assert f'"{library}=={version}"' in pins, "also read the page again, and measure what it says"


@each_notebook
def test_links_to_other_notebooks_lead_somewhere(notebook):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", notebook.prose):
        assert (notebook.path.parent / target).is_file(), target
        served = ROOT / "notebooks"  # all that JupyterLab shows, started as README says
        assert (notebook.path.parent / target).resolve().is_relative_to(served), target


ASSERTS = r"^\s*assert |\.reveal\((?!.*basis=)"  # reveal() fails if the course says something else
SHOWN_IN = {"executed": {"code"}, "recorded": {"code", "markdown"}, "cited": {"markdown"}, "derived": {"markdown"}}
SHOWS_THAT = {  # what a fact rests on is to be seen in its cell: a link, a formula; of a record, beside it
    "executed": r"\bassert\b|\.reveal\(",
    "recorded": r"\brecorded\b|\bon record\b|\bmeasurements/|\bbeside\.",
    "cited": r"\]\(https?://",
    "derived": r"\$[^$]+\$",
}


@each_notebook
def test_every_fact_has_a_cell_and_one_that_is_executed_has_an_assertion_in_it(notebook):
    facts = {name: fact for name, fact in FACTS.items() if fact.notebook == notebook.name}
    shown = set()
    for index, cell in enumerate(notebook.cells):
        shown |= set(claims(cell))
        for fact in [facts[name] for name in claims(cell)]:
            assert cell.cell_type in SHOWN_IN[fact.basis], fact.id
            if fact.basis == "executed":
                assert re.search(ASSERTS, cell.source, flags=re.M), f"{fact.id}: nothing is asserted"
                assert "pytest.raises" not in cell.source
            around = "\n".join(cell.source for cell in notebook.cells[index - 1 : index + 2])
            rests_on = around if fact.basis == "recorded" else cell.source
            assert re.search(SHOWS_THAT[fact.basis], rests_on, flags=re.I), f"{fact.id}: {fact.basis}?"
    assert shown == facts.keys()


# Numbers in sentences: of two digits at least, since a single digit stands in some cell anyway.
NUMBER = r"(?<![\w.,/#$^-])(?:\d\d+(?:\.\d+)?|\d\.\d+)(?![\w/])"
NOT_READ = (
    r"```.*?```|`[^`]*`|<[^>]+>|\$[^$]*\$|(?:Steps?|Notebook) \d+|\d+.minutes?\b|\b20\d\d\b|\*As of .*|"
    r"(?:PyTorch|Python|[Tt]orch|[Tt]ransformers|[Aa]ccelerate|[Ll]ightning) [\d.]+"
)
CITED = r"\]\(http|[Rr]ecorded|reported|[Tt]ested"  # in a sentence whose numbers are somebody's, or on record
NOT_COMPUTED = {  # of a story or a setting, or worked out in the sentence: a reader has to check these
    "00_start": "2.3",
    "02_zeroing": "100 101",
    "04_accumulation": "2.4",
    "08_training_loop": "16000 1000 33 34 135",
    "09_amp": "744 2000",
    "11_pitfalls": "22",
    "12_project": "60 150 3.3 15547 65536 16160 300 44",
    "checkpoints": "11 30",
    "ddp_options": "1003",
    "frameworks": "125",
    "hooks": "12",
    "how_the_auditor_knows": "15 23 476 557",
    "memory": "1000",
    "noise_scale": "1437 48",
    "several_optimizers": "2.9",
    "should_you_accumulate": "80 16384 244 0.01 0.1 0.44 3.4",
    "skipped_steps": "65536",
    "who_writes_grad": "65520",
}


def without_commas(text: str) -> str:
    return re.sub(r"(?<=\d)[_,](?=\d{3})", "", text)


@each_notebook
def test_a_number_in_a_sentence_is_one_that_a_cell_holds_or_shows(notebook):
    metadata = [str(output.get("metadata", "")) for cell in notebook.code for output in cell.outputs]
    explanations = {cell.id: "\n".join(explained(cell)) for cell in notebook.code}
    cells = [cell.source for cell in notebook.code if not explanations[cell.id]]
    cells += [re.sub(r'""".*?"""', "", cell.source, flags=re.S) for cell in notebook.code if explanations[cell.id]]
    cells += [text_of(cell) for cell in notebook.code if not explanations[cell.id]]
    known = {*re.findall(r"\d+(?:\.\d+)?", without_commas("\n".join(cells + metadata)))}
    known |= {*NOT_COMPUTED.get(notebook.name, "").split()}
    prose = [cell.source for cell in notebook.cells[1:] if cell.cell_type == "markdown"]
    for text in [*prose, *explanations.values()]:
        text = re.sub(NOT_READ, " ", relinked(text, lambda *_: ""), flags=re.S)
        for sentence in re.split(r"(?<=[.?!])\s+|\n", text):
            if not re.search(CITED, sentence):
                assert {*re.findall(NUMBER, without_commas(sentence))} <= known, sentence


def explained(cell) -> Iterator[str]:
    """The sentences of a reveal as the cell's source has them, so without what it formats."""
    for node in ast.walk(ast.parse(cell.source)):
        match node:
            case ast.Call(ast.Attribute(attr="reveal"), [_, *because], keywords):
                for given in [*because, *(keyword.value for keyword in keywords if keyword.arg == "because")]:
                    parts = given.values if isinstance(given, ast.JoinedStr) else [given]
                    yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in parts)
