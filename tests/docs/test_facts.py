"""The facts: what a record must say, what its errors say, and that each falsifier has something to break."""

import pytest
from course_utils.publish import PublishError
from course_utils.publish.facts import VERDICTS, Breakage, Edit, Fact, read_claims, read_facts
from course_utils.publish.notebook import claims

from breakages import BREAKAGES
from course import FACTS, NOTEBOOKS
from course_utils import data

COMPLETE = """
[step-only-reads]
statement = "step() reads .grad and leaves it there."
belief = "step() clears .grad."
verdict = "wrong"
basis = "executed"
falsifier.breakage = "torch: step clears .grad"
"""


@pytest.fixture
def facts_in(tmp_path, monkeypatch):
    """Reads facts from a folder of files with these contents."""

    def read(**files):
        (tmp_path / "facts").mkdir()
        for name, content in files.items():
            (tmp_path / "facts" / f"{name}.toml").write_text(content, encoding="utf-8")
        monkeypatch.setattr(data, "folder", lambda: tmp_path)
        return read_facts()

    return read


def test_a_fact_is_a_table_whose_name_is_its_id_in_the_file_of_its_notebook(facts_in):
    assert facts_in(nb02=COMPLETE)["step-only-reads"] == Fact(
        id="step-only-reads",
        notebook="nb02",
        statement="step() reads .grad and leaves it there.",
        belief="step() clears .grad.",
        verdict="wrong",
        basis="executed",
        falsifier=Breakage("torch: step clears .grad"),
    )


def test_only_an_executed_fact_needs_a_falsifier(facts_in):
    lines = [line for line in COMPLETE.splitlines() if not line.startswith("falsifier")]
    assert facts_in(nb02="\n".join(lines).replace("executed", "recorded"))["step-only-reads"].falsifier is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('verdict = "wrong"', "", "step-only-reads: expected basis, .*, verdict and falsifier, got basis, "),
        ('verdict = "wrong"', 'verdict = "wrong"\nsource = "x"', "expected .*, got .*source"),
        ('"wrong"', '"mistaken"', "verdict must be one of true, true-if, .*, got 'mistaken'"),
        ('"executed"', '"guessed"', "basis must be one of executed, recorded, cited, derived, got 'guessed'"),
        ('falsifier.breakage = "torch: step clears .grad"', "", "an executed fact needs a falsifier"),
        ("falsifier.breakage", "falsifier.break", "falsifier must hold `breakage`, or `old` and `new`"),
        ("[step-only-reads]", "[step-only-reads", "cannot be read as TOML"),
        ("[step-only-reads]", "", "nb02.toml: statement: "),
    ],
)
def test_a_record_that_is_wrong_is_a_clear_error(facts_in, old, new, message):
    assert old in COMPLETE
    with pytest.raises(PublishError, match=message):
        facts_in(nb02=COMPLETE.replace(old, new))


def test_only_an_executed_fact_may_say_measured(facts_in):
    measured = COMPLETE.replace("step() reads", "Measured, step() reads")
    with pytest.raises(PublishError, match='only an executed fact may say "measured", and this one is recorded'):
        facts_in(nb02=measured.replace("executed", "recorded"))


def test_two_facts_of_one_id_are_an_error(facts_in):
    with pytest.raises(PublishError, match=r"nb03\.toml: step-only-reads: the id is taken by a fact of nb02"):
        facts_in(nb02=COMPLETE, nb03=COMPLETE)


def test_without_facts_the_error_names_the_folder(facts_in, tmp_path):
    with pytest.raises(PublishError, match=f"there are no facts in {tmp_path / 'facts'}"):
        facts_in()


def test_every_common_claim_is_answered_by_a_fact():
    found = read_claims()
    numbers = {"A": 86, "B": 83, "C": 25, "D": 25, "G": 33, "X": 18}  # how many claims each source makes
    assert [claim.id for claim in found] == [f"{s}-{n:02}" for s, many in numbers.items() for n in range(1, many + 1)]
    for claim in found:
        assert claim.fact in FACTS, claim
        assert claim.verdict in (*VERDICTS, "resolve"), claim


def test_a_table_of_claims_with_another_column_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "claims.csv").write_text("id,kind,claim\nA-01,step,Gradients add up.\n")
    monkeypatch.setattr(data, "folder", lambda: tmp_path)
    with pytest.raises(PublishError, match=r"claims\.csv cannot be read as a table of claims"):
        read_claims()


def test_every_falsifier_has_something_to_break():
    sources: dict[str, str] = {}
    for notebook in NOTEBOOKS.values():
        for cell in notebook.code:
            for claim in claims(cell):
                sources[claim] = sources.get(claim, "") + cell.source
    for fact in FACTS.values():
        match fact.falsifier:
            case Breakage(name):
                assert name in BREAKAGES, fact.id
            case Edit(old, new):
                assert old in sources[fact.id], fact.id
                assert old != new, fact.id
