"""README.md: its number, its pictures, its diff and what the auditor says of it, its links."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import silhouettes
from course import NOTEBOOKS
from course_utils import train_epoch, windows
from gradaudit import audit
from gradaudit.formats import as_text

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "docs" / name for name in ("loop.md", "auditor.md", "instructors.md")]
BEFORE = """import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(8)]
for epoch in range(3):
"""


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_every_file_that_is_linked_exists(path):
    links = re.findall(r'(?:\]\(|src="|srcset=")(?!https?:)([^)#"]+)', path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def code(kind: str) -> str:
    return re.search(rf"^```{kind}\n(.*?)^```$", README, flags=re.M | re.S)[1]


def test_in_how_many_loops_the_loss_falls_is_what_notebook_11_measures():
    shown = next(shown for shown in NOTEBOOKS["11_pitfalls"].displays("reveal") if "loops with a" in shown["question"])
    loops = re.search("of ([0-9]+) loops", shown["question"])[1]
    assert f"{loops} loops, rebuilt from public bug reports, have wrong updates" in README
    assert f"in {re.match('It falls in ([0-9]+)', shown['because'])[1]} of them the loss still falls" in README


def test_the_pictures_are_the_loops_of_today_and_those_who_cannot_see_them_read_the_updates():
    for path, svg in silhouettes.files().items():
        assert path.read_text(encoding="utf-8") == svg, "run: python docs/silhouettes.py"
    for bug in silhouettes.cheatsheet.bugs():
        name = bug["name"].replace("\N{NO-BREAK SPACE}", " ").lower().replace(" n", " N")
        assert f"{name} {', '.join(map(str, silhouettes.updates(bug)))}" in README


def test_the_auditor_says_of_the_loop_what_stands_below_it_and_nothing_once_it_is_fixed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    for left_out in "+-":
        lines = [f"    {line[1:]}" for line in code("diff").splitlines() if line[0] != left_out]
        (tmp_path / "train.py").write_text("\n".join([BEFORE.rstrip(), *lines, ""]), encoding="utf-8")
        with audit() as report:
            runpy.run_path("train.py")
        said.append(as_text(report, 39))  # columns
    assert code("text") in said[0]
    assert "No error in 6 updates" in said[1]


def test_the_loop_is_that_of_the_helper():
    models = [nn.Linear(4, 2, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for model in models)
    batches = [torch.randn(size, 4, dtype=torch.float64) for size in (3, 1, 2, 5, 4, 2)]
    given = {"windows": windows, "batches": batches, "loss_fn": lambda model, batch: model(batch).square().mean()}
    exec(code("python"), given | {"tokens": len, "model": models[0], "optimizer": one})
    train_epoch(models[1], batches, given["loss_fn"], two, 4)
    torch.testing.assert_close(*(model.weight for model in models), rtol=0, atol=1e-12)


def test_a_phone_shows_code_to_the_end_of_its_lines():
    for block in re.findall(r"^```\w*\n(.*?)^```$", README, flags=re.M | re.S):
        assert max(map(len, block.splitlines())) <= 39
