"""README.md: its example of the auditor, its snippet, its links, and the pages they lead to."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "docs" / name for name in ("loop.md", "auditor.md", "instructors.md")]
LOOP = "tests/public_loops/or_last.py"


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_every_file_that_is_linked_exists(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def code(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)\n```$", README, flags=re.M | re.S)


def test_the_auditor_says_of_the_public_loop_what_stands_below_it():
    (report,) = code("text")
    command = f"gradaudit {LOOP}"
    assert f"`{command}`" in README
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert report in done.stdout


def test_the_snippet_runs_and_says_what_its_comment_says(capsys):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    batches = [(torch.randn(3, 4), torch.randint(2, (3,))) for _ in range(10)]
    names = {
        "model": model,
        "batches": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
    }
    snippet = code("python")[0]
    exec(snippet, names)
    (said,) = re.findall(r"# (\[[\d, ]+\])", snippet)
    assert capsys.readouterr().out.strip() == said
