"""The auditor's command line, and four public loops that it judges."""

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

import gradaudit
from gradaudit.__main__ import main
from gradaudit.observe.guard import ObserverFailure
from gradaudit.running import _wait_for_ranks
from terminal import in_terminal, without_colours

LOOPS = Path(__file__).parents[1] / "public_loops"
DIAGNOSES = {
    "fabric_guide": {"irregular-window": "1, 8, 8, 8, 8", "loss-scale": "8 times", "leftover-gradients": "last 7"},
    "or_last": {"loss-scale": "2 micro-batches is divided by 4, so its update is 0.50"},
}
TRAIN = """
import sys, torch
from torch import nn
model = nn.Linear(3, 2)
optimizer = torch.optim.{optimizer}
for i in range(4):
    nn.functional.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
    optimizer.step()
    {zero}
{end}
"""


@pytest.fixture
def audited(tmp_path, capsys):
    """Runs a script as a command would: its status, its JSON, its output and its complaints."""

    def run(script, *arguments, options=()):
        out = tmp_path / "findings.json"
        if not isinstance(script, Path):
            (tmp_path / "train.py").write_text(script)
            script = tmp_path / "train.py"
        status = main(["--output-format", "json", "--output", str(out), *options, str(script), *arguments])
        printed = capsys.readouterr()
        return status, json.loads(out.read_text()), printed.out, printed.err

    return run


def script(end="", zero="optimizer.zero_grad()", optimizer="SGD(model.parameters(), lr=0.1)"):
    return TRAIN.format(end=end, zero=zero, optimizer=optimizer)


@pytest.mark.parametrize("name", DIAGNOSES)
def test_a_public_loop_is_diagnosed(name, audited):
    status, result, printed, _ = audited(LOOPS / f"{name}.py")
    assert status == 1
    errors = {f["rule"]: f for f in result["findings"] if f["level"] == "error"}
    assert errors.keys() == DIAGNOSES[name].keys()
    for rule, words in DIAGNOSES[name].items():
        assert words in errors[rule]["message"]
        assert errors[rule]["where"].startswith(f"{LOOPS / name}.py:")
    assert result["script_exit"] == 0
    printed = " ".join(printed.split())  # in one line
    assert all(error["message"] in printed for error in errors.values())


OPEN = "model(torch.ones(1, 3)).square().mean().backward()"  # a window that is never used
STALE = "stale-gradients"


@pytest.mark.parametrize(
    ("source", "status", "script_exit", "rules", "complaint"),
    [
        (script(), 0, 0, [], ""),
        (script("sys.exit()", zero="pass"), 1, 0, [STALE], ""),
        (script("1 / 0", zero="pass"), 3, 1, [STALE], "ZeroDivisionError"),
        (script("sys.exit(7)", zero="pass"), 3, 7, [STALE], ""),
        (script("sys.exit('no more')", zero="pass"), 3, 1, [STALE], "no more"),
        (script("raise KeyboardInterrupt", zero="pass"), 3, 130, [STALE], "KeyboardInterrupt"),
        (script(f"{OPEN}\nsys.exit(0)"), 0, 0, ["leftover-gradients"], ""),
        (script(f"{OPEN}\n1 / 0"), 3, 1, [], "ZeroDivisionError"),  # the window in which it failed isn't judged
        ("def", 3, 1, [], "SyntaxError"),
    ],
)
def test_the_status_says_whether_an_error_was_found_and_whether_the_script_failed(
    audited, source, status, script_exit, rules, complaint
):
    ended, result, printed, errors = audited(source)
    assert (ended, result["script_exit"], [f["rule"] for f in result["findings"]]) == (status, script_exit, rules)
    assert complaint in errors
    assert "audit/__main__.py" not in errors
    assert (f"ended with status {script_exit}" in printed) == (status == 3)
    assert status or printed.rstrip().rpartition("\n")[2].startswith("No error in 4 updates")


LOOP = """
import multiprocessing, torch
from torch import nn
from torch.func import functional_call, grad
model = nn.Linear(3, 2)
copy = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = torch.compile(lambda: optimizer.step(), backend="eager")
loss_of = lambda model: nn.functional.cross_entropy(model(torch.ones(4, 3)), torch.tensor([0, 1, 0, 1]))
for _ in range(4):
{}
"""
ASSIGNED = """
    for p, gradient in zip(model.parameters(), torch.autograd.grad(loss_of(model), list(model.parameters()))):
        p.grad = gradient if p.grad is None else p.grad + gradient
    optimizer.step()
"""
FUNCTIONAL = """
    grad(lambda weights: loss_of(lambda x: functional_call(model, weights, (x,))))(dict(model.named_parameters()))
"""
FROM_ELSEWHERE = "of SGD, the gradients came from no backward call that was seen"
COMPILED = "no optimizer step was seen; the weights of SGD changed without a step that can be seen, as in torch.compile"
NOTHING = "no backward call and no optimizer step was seen"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ASSIGNED, f"in 4 of 4 updates {FROM_ELSEWHERE}"),
        ("    loss_of(model).backward()\n    step()\n    optimizer.zero_grad()", COMPILED),
        ("    multiprocessing.get_context('fork').Process(target=abs, args=[1]).start()", "started other processes"),
        (FUNCTIONAL, f"{NOTHING}; the script took gradients with torch.autograd.grad or torch.func"),
        ("    loss_of(copy).backward()", "no optimizer step was seen."),
        ("    pass", f"{NOTHING}."),
    ],
)
def test_a_script_in_which_nothing_can_be_judged_ends_with_4_and_the_reason(audited, code, reason):
    status, result, printed, _ = audited(LOOP.format(code))
    assert (status, result["judged"], result["script_exit"]) == (4, False, 0)
    assert "No error" not in printed
    assert f"{'; '.join(result['unseen'])}." in " ".join(printed.partition("Could not judge: ")[2].split())
    assert reason in f"{'; '.join(result['unseen'])}."


def test_a_script_that_is_seen_in_part_is_judged_as_far_as_it_was_seen(audited):
    begun = "\n    loss_of(model).backward(); optimizer.step(){}\noptimizer.zero_grad()\nfor _ in range(3):\n"
    status, result, printed, _ = audited(LOOP.format(begun.format("; optimizer.zero_grad()") + ASSIGNED))
    assert (status, result["judged"], result["findings"]) == (0, True, [])
    printed = " ".join(printed.split())
    assert f"Not seen: in 3 of 7 updates {FROM_ELSEWHERE}" in printed
    assert printed.endswith("No error in 7 updates, by 9 of 17 rules, in what was seen")
    status, result, _, _ = audited(LOOP.format(begun.format("") + ASSIGNED))
    assert status == 1
    assert [f["rule"] for f in result["findings"]] == ["stale-gradients"]


KEYS = "ignore (list), fail-on (str), window (int)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("src/tran.py", "there is no script src/tran.py; did you mean src/train.py?"),
        ("x/y.py", "there is no script x/y.py; paths begin at {}"),
        ("training", "training is a folder; name the script in it, such as training/train.py"),
        ("empty", "empty is a folder; name the script in it"),
        ("-m train.py", "there is no module train.py; to run the file, leave out -m"),
        ("-m no_such.train", "there is no module no_such.train: nothing called no_such is here or installed"),
        ("--explain loss-scal", "there is no rule loss-scal; did you mean loss-scale?"),
        ("--explain x", "there is no rule x; gradaudit --explain lists all"),
        ("--window 0 train.py", "--window must be 1 or more, got 0"),
        ("--ignore batchnorm,los-scale train.py", "there is no rule los-scale; did you mean loss-scale?"),
        ("--fail-on doubt train.py", "--fail-on must be error, undecided, advice, got doubt"),
        ("src/eval.py", "[tool.gradaudit] in {}/src/pyproject.toml takes " + KEYS + ", got window = '4'"),
        ("training/gan.py", "{}/training/pyproject.toml: Invalid value (at end of document)"),
        ("--output src train.py", "cannot write {}/src; give --output a file in a folder that you may write to"),
    ],
)
def test_what_cannot_run_ends_with_2_and_one_line_that_says_what_to_do(arguments, said, tmp_path, monkeypatch, capsys):
    for script in ("train.py", "src/eval.py", "src/train.py", "training/gan.py", "training/train.py"):
        (tmp_path / script).parent.mkdir(exist_ok=True)
        (tmp_path / script).write_text("raise SystemError")
    (tmp_path / "empty").mkdir()
    for script, line in (("src/eval.py", "window = '4'"), ("training/gan.py", "ignore = [")):
        (tmp_path / script).with_name("pyproject.toml").write_text(f"[tool.gradaudit]\n{line}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ending:
        main(arguments.split())
    assert ending.value.code == 2
    assert capsys.readouterr() == ("", f"gradaudit: {said.format(tmp_path)}\n")


def test_where_the_auditor_fails_the_script_runs_and_the_status_is_2(audited, monkeypatch):
    monkeypatch.setattr("gradaudit.observe.observer.Observer.attach", lambda self: 1 / 0)
    with pytest.warns(ObserverFailure, match="ZeroDivisionError"):
        status, result, printed, errors = audited(script("print('trained')", zero="pass"))
    assert (status, result["findings"]) == (2, [])
    assert "ZeroDivisionError" in result["failure"]
    assert "trained" in printed
    assert "the auditor itself has failed; the script is not to blame" in errors


def test_where_the_report_cannot_be_written_the_status_is_2(monkeypatch, train_py, capsys):
    monkeypatch.setattr("gradaudit.running.as_text", None)
    assert main([str(train_py(script()))]) == 2
    assert "the auditor itself has failed" in capsys.readouterr().err
    assert main([str(train_py(script("1 / 0")))]) == 3


TWO_OPTIMIZERS = """
import torch
from torch import nn
one, other = nn.Linear(3, 2), nn.Linear(2, 1)
first, second = (torch.optim.{}(each.parameters(), lr=0.1) for each in (one, other))
def go_back():
    first.zero_grad(); second.zero_grad()
    loss = other(one(torch.ones(4, 3))).square().mean(); loss.backward(); return loss
try:
    for i in range(90):
        try:
            {}
        except Exception:
            pass
finally:
    print("saved", i)
"""
APART = "one.bias.sum().backward(); other.bias.sum().backward(); [e.step() or e.zero_grad() for e in (first, second)]"
INSIDE = "other.bias.register_post_accumulate_grad_hook(lambda _: second.step()) if i == 0 else 0; go_back()"


@pytest.mark.parametrize(
    ("kind", "step", "last"),
    [
        ("SGD", APART, 3),  # the second optimizer makes its step, too
        ("LBFGS", "first.step(go_back); second.step(go_back)", 2),
        ("SGD", INSIDE, 5),  # the backward call ends first
    ],
)
def test_after_so_many_updates_the_script_is_ended_and_what_it_left_open_is_no_error(audited, kind, step, last):
    status, result, printed, _ = audited(TWO_OPTIMIZERS.format(kind, step), options=["--max-updates", "5"])
    assert status != 3
    assert "leftover-gradients" not in [finding["rule"] for finding in result["findings"]]
    assert printed.startswith(f"saved {last}\n\n--- audit of train.py ---\nThe script was ended after update 5, as")


LONG = script("sys.stderr.write('trained')", zero="pass").replace("range(4)", "range(9)")
ZEROED = LONG.replace("pass", "optimizer.zero_grad()")
CLIPPED = ZEROED.replace("nn.functional", "i < 6 and nn.utils.clip_grad_norm_(model.parameters(), 1); nn.functional")


@pytest.mark.parametrize(
    ("code", "options", "early"),
    [
        (LONG, [], r"\ngradaudit: \S*train.py:8:5: error stale-gradients Update 2 .*; 7 of 8 updates do so\n"),
        (LONG, ["--ignore", STALE], ""),
        (ZEROED, [], ""),
        (CLIPPED.replace("9", "40"), [], ""),  # in most of the first updates, and in few of all
    ],
)
def test_the_first_error_is_said_while_the_script_runs(audited, code, options, early):
    assert re.fullmatch(f"gradaudit: watching train.py\n{early}trained", audited(code, options=options)[3])


FORMATS = {
    "concise": "train.py:8:5: error stale-gradients Update 2 used",
    "github": "::error file=train.py,line=8,col=5,title=gradaudit stale-gradients::Update 2 used",
    "sarif": '"startColumn": 5',
    "json": '"column": 5',
}


@pytest.mark.parametrize("how", FORMATS)
def test_other_tools_read_the_findings_in_their_formats(train_py, how, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = "--output-format", how, str(train_py(script("print('trained')", zero="pass")))
    assert main([*command]) == 1
    printed = capsys.readouterr().out
    assert main(["--output", "found", *command]) == 1
    assert "\nERROR stale-gradients" in capsys.readouterr().out
    found = (tmp_path / "found").read_text()
    assert printed == f"trained\n\n{found}"
    assert FORMATS[how] in found
    for run in json.loads(found)["runs"] if how == "sarif" else ():
        assert [run["tool"]["driver"]["rules"][0]["id"], run["results"][0]["ruleId"]] == [STALE, STALE]


WRONG, ADVICE = (
    script(zero="pass"),
    script().replace("optimizer.step()", "nn.utils.clip_grad_norm_([], 1); optimizer.step()"),
)


@pytest.mark.parametrize(
    ("code", "options", "file", "status", "last"),
    [
        (WRONG, f"--ignore batchnorm,{STALE}", "", 0, "No error in 4 updates, by 9 of 17 rules; 1 ignored"),
        (WRONG, "", f"ignore = ['{STALE}']", 0, "; 1 ignored"),
        (WRONG, "--ignore batchnorm --ignore loss-scale", f"ignore = ['{STALE}']", 1, "1 error in 4 updates"),
        (WRONG.replace(".step()", f".step()  # gradaudit: ignore[batchnorm, {STALE}]"), "", "", 0, "; 1 ignored"),
        (script(), "", "window = 2", 1, "1 error in 4 updates"),
        (script(), "--window 2", "", 1, "1 error in 4 updates"),
        (ADVICE, "--fail-on undecided", "fail-on = 'advice'", 0, "10 of 17 rules"),
        (ADVICE, "", "fail-on = 'advice'", 1, "10 of 17 rules"),
    ],
)
def test_what_counts_as_an_error_can_be_chosen_also_in_a_file(audited, tmp_path, code, options, file, status, last):
    (tmp_path / "pyproject.toml").write_text(f"[tool.gradaudit]\n{file}\n")
    ended, _, printed, _ = audited(code, options=options.split())
    assert (ended, printed.endswith(f"{last}\n")) == (status, True), printed


def test_a_thread_that_outlives_the_script_is_seen(audited):
    code = script(zero="pass").replace("\n", "\n    ")
    code = f"import threading, time\ndef train():\n    time.sleep(0.2)\n{code}\n"
    assert audited(code + "threading.Thread(target=train).start()\n")[0] == 1


# What is printed around the report


def test_a_terminal_shows_colours_and_lines_of_its_width():
    pytest.importorskip("pty")
    command = [sys.executable, "-m", "gradaudit", str(LOOPS / "fabric_guide.py")]
    status, shown = in_terminal(command, 40, Path(__file__).parents[2])
    assert status == 1
    assert "\033[1;31mERROR loss-scale\033[0m" in shown
    assert all(len(line) <= 40 or len(line.split()) == 1 for line in without_colours(shown).splitlines())


def test_the_help_fits_a_terminal_and_names_the_exit_statuses(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 23  # and the prompt
    assert max(map(len, shown.splitlines())) <= 80
    statuses = "0 judged, no error found; 1 at least one error; 2 the audit could not run, or failed while the script "
    assert f"{statuses}went on; 3 the script failed; 4 nothing could be judged" in " ".join(shown.split())


@pytest.mark.parametrize("name", ["a\033[2J\nb.py", "a\udcffb.py", "a\u202eb.py"], ids=["ANSI", "no UTF-8", "turned"])
def test_a_terminal_obeys_no_character_of_a_files_name(name, tmp_path, capsys):
    (tmp_path / name).write_text(script(zero="pass"), encoding="utf-8")
    assert main([str(tmp_path / name)]) == 1
    with pytest.raises(SystemExit):
        main([f"{name} is not there"])
    printed, said = capsys.readouterr()
    escaped = name.encode("unicode_escape").decode()
    assert printed.startswith(f"\n--- audit of {escaped} ---\n")
    assert f"{escaped}:8\n  7 | " in printed
    assert f"no script {escaped} is not there; " in said
    assert name not in printed + said


def test_files_are_named_from_where_the_command_began(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(script("import os; os.chdir('/')", zero="pass"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "chdir", os.chdir)  # which monkeypatch.chdir puts right
    assert main(["--output-format", "json", "--output", "found.json", "train.py"]) == 1
    assert json.loads((tmp_path / "found.json").read_text())["findings"]
    assert " | optimizer.step()\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("--explain", STALE), ("--explain loss-scale", "nanoGPT"), ("--help", "usage:"), ("none.py", "no script none.py")],
)
def test_what_runs_nothing_needs_no_torch(arguments, said):
    code = "import sys; sys.modules['torch'] = None; from gradaudit.__main__ import main; main(sys.argv[1:])"
    run = subprocess.run([sys.executable, "-c", code, *arguments.split()], capture_output=True, text=True, check=False)
    assert run.returncode == 2 * ("none" in arguments)
    assert said in run.stdout + run.stderr


def test_a_signals_handler_is_put_back_and_torchrun_is_told(tmp_path, monkeypatch, train_py):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    before = signal.getsignal(signal.SIGTERM)
    assert main([str(train_py(script(zero="pass")))]) == 1
    assert signal.getsignal(signal.SIGTERM) is before
    told = json.loads((tmp_path / "error.json").read_text())
    assert told["message"] == "gradaudit: 1 error in 4 updates; the report is above"


def test_the_auditor_imports_torch_alone():
    """Besides what belongs to Python, and pytest for its fixture."""
    imported = set()
    for path in Path(gradaudit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert imported == {"gradaudit", "pytest", "torch"}


# Modules


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a package and goes to the folder that it lies in."""

    def write(**files):
        for name, code in files.items():
            path = tmp_path / "trainer_of_tests" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(code)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path[1:]])  # as python -m has it
        return tmp_path / "trainer_of_tests"

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer_of_tests"]:
        del sys.modules[name]


CHECKS = """
import sys
from . import beside
from .beside import x
assert __name__ == "__main__" and __package__ == "trainer_of_tests", (__name__, __package__)
assert __spec__.name == "trainer_of_tests.NAME" and __file__ == sys.argv[0] == __spec__.origin
assert sys.argv[1:] == ["-m", "--lr", "3"], sys.argv
assert sys.modules["__main__"].x == 5
"""


@pytest.mark.parametrize(("module", "name"), [("trainer_of_tests.train", "train"), ("trainer_of_tests", "__main__")])
def test_a_module_runs_as_python_m_would_run_it(module, name, package, capsys):
    code = CHECKS.replace("NAME", name) + script(zero="pass")
    folder = package(__init__="", beside="x = 5", **{name: code})
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    assert main(["--output-format", "json", "--output", "found.json", "-m", module, "-m", "--lr", "3"]) == 1, (
        capsys.readouterr().err
    )
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    result = json.loads((folder.parent / "found.json").read_text())
    (finding,) = result["findings"]
    assert finding["where"].startswith(f"{folder / name}.py:")
    printed = capsys.readouterr()
    assert f"--- audit of {module} ---\n" in printed.out
    assert f"trainer_of_tests/{name}.py:" in printed.out

    plain = subprocess.run([sys.executable, "-m", module, "-m", "--lr", "3"], cwd=folder.parent, check=False)
    assert plain.returncode == 0  # the same checks hold without the auditor


@pytest.mark.parametrize(
    ("files", "module", "complaint"),
    [
        ({"__init__": ""}, "trainer_of_tests", "trainer_of_tests"),
        ({"__init__": "1 / 0", "train": ""}, "trainer_of_tests.train", "ZeroDivisionError"),
        ({"__init__": "", "train": "from .nowhere import x"}, "trainer_of_tests.train", "nowhere"),
    ],
)
def test_a_module_that_cannot_run(files, module, complaint, package, capsys):
    package(**files)
    assert main(["-m", module]) == 3
    assert complaint in capsys.readouterr().err


def test_a_module_of_an_installed_package_is_the_users_code_if_it_is_run(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_trainer_of_tests.py").write_text(script(zero="pass"))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path[1:]])
    assert main(["-m", "installed_trainer_of_tests"]) == 1
    printed = capsys.readouterr().out
    assert "ERROR stale-gradients  installed_trainer_of_tests.py:8\n" in printed


def test_a_terminal_that_knows_few_characters_gets_those_that_it_knows(audited, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    code = script(zero="pass").replace("optimizer.step()", "optimizer.step()  # größer")
    assert audited(code)[0] == 1
    text = stream.buffer.getvalue().decode("ascii")
    assert "optimizer.step()  # gr" in text
    assert "already used; 3 of 4 updates do so" in " ".join(text.split())


def test_a_rank_waits_for_a_later_report_and_no_longer_than_the_limit(monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("localhost", 0, is_master=True, timeout=timedelta(seconds=20), wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    started = time.monotonic()
    _wait_for_ranks(2, 0.5)
    other = threading.Timer(0.5, store.add, ("gradaudit", 2))
    other.start()
    _wait_for_ranks(4, 20)
    other.join()
    assert 1 <= time.monotonic() - started < 10
