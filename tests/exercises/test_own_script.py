"""A learner's own script, audited in a process of its own: here with real processes."""

from pathlib import Path

from course_utils.exercises import judge
from course_utils.exercises.nb12_project import audit_script, public_loop
from course_utils.zoo import ZOO

LOOP = """
import sys, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    {}
    model(torch.ones(3, 2)).mean().backward()
    optimizer.step()
"""


def test_a_correct_script_runs_with_its_arguments(train_py, monkeypatch, capsys):
    path = train_py(LOOP.format("optimizer.zero_grad()") + "open('arguments.txt', 'w').write(str(sys.argv[1:]))\n")
    monkeypatch.chdir(path.parent)
    audited = audit_script("train.py", "none", ["--epochs", 1])
    assert path.with_name("arguments.txt").read_text() == "['--epochs', '1']"
    assert "\nNo error in 8 updates, by 8 of 17 rules\n" in capsys.readouterr().out
    assert "the auditor found none, as you said; exit status 0" in judge("own_script", audited).message


def test_a_script_that_runs_too_long_is_stopped_and_judged_by_what_it_did(train_py, monkeypatch, capsys):
    append = "    with open('updates', 'a') as file: file.write('.')\n"  # a file left open loses a signal as it closes
    path = train_py(LOOP.format("").replace("range(8)", "iter(int, 1)") + append)
    monkeypatch.chdir(path.parent)
    seconds = 3
    while not (path.with_name("updates").exists() and path.with_name("updates").stat().st_size > 10):
        seconds *= 2  # on a busy machine it may start late
        audited = audit_script(path, "stale-gradients", limit=seconds)
    assert "\nERROR stale-gradients  train.py:8\n" in capsys.readouterr().out
    message = "you predicted stale-gradients, the auditor found stale-gradients (error), as you said; exit status 3"
    assert message in judge("own_script", audited).message


def test_nothing_runs_before_there_is_a_script_and_a_prediction(train_py, monkeypatch):
    path = train_py("open('ran', 'w')")
    monkeypatch.chdir(path.parent)
    for script, prediction in ((None, "none"), (path, None), (path, "gradients")):
        assert audit_script(script, prediction)[1:] == (None, None)
    assert not path.with_name("ran").exists()
    assert judge("own_script", audit_script("no.py", "none")).bug == "not-judged"


def test_every_loop_of_the_zoo_is_a_script_whose_name_says_nothing():
    listings = set()
    for number in range(len(ZOO)):
        path = Path(public_loop(number))
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        assert path.name == f"loop_{number}.py"
        assert "specimen" not in text.lower()
        listings.add(text)
    assert len(listings) == len(ZOO)
