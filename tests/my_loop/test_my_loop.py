"""The loop that grows: what is kept of a learner's, and what the next notebook gets."""

import re
import sys
from contextlib import nullcontext
from subprocess import run

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import gradaudit
from course import NOTEBOOKS
from course_utils import Ranks, mlp, my_loop, train_epoch
from course_utils.exercises import LOOPS, check, judge, loop_so_far
from course_utils.my_loop import FILE
from notebooks import tags

CHECKED = {LOOPS[exercise]: exercise for exercise in reversed(LOOPS)}  # the first of a notebook


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of a learner's, in which loops are kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_VERSION")
    return tmp_path


# Three learners, each with a style of their own.


def train(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()


def counting(model, batches, loss_fn, optimizer, n):
    for k, batch in enumerate(batches):
        if k % n == 0:
            optimizer.zero_grad()
        torch.div(loss_fn(model, batch), n).backward()
        if k % n == n - 1:
            optimizer.step()


def with_a_helper(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in pieces(list(batches), n):
        size = sum(len(batch) for batch in window)
        for batch in window:
            (loss_fn(model, batch) * len(batch) / size).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def by_sums(model, batches, loss_fn, optimizer, n, weight):
    for window in pieces(list(batches), n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) * weight(batch)).backward()
        for p in model.parameters():
            p.grad /= sum(map(weight, window))
        optimizer.step()


def pieces(batches, n):
    return [batches[start : start + n] for start in range(0, len(batches), n)]


@pytest.mark.parametrize(("after", "answer"), [("00", train), ("04", counting), ("05", with_a_helper), ("06", by_sums)])
def test_a_loop_that_passes_is_kept_runs_alone_and_is_the_next_notebooks(folder, after, answer):
    verdict = check(CHECKED[after], answer)
    assert verdict.passed
    assert "kept in `my_loop.py`" in verdict.message
    assert FILE.read_text().startswith(f"# The loop after {after}")
    so_far = loop_so_far(after)  # the file runs alone, and passes again
    assert so_far.__code__.co_names == answer.__code__.co_names
    assert [path.name for path in folder.iterdir()] == ["my_loop.py"]


def test_of_a_loop_that_prints_it_is_said_that_later_cells_print_too(folder):
    def printing(model, batches, loss_fn, optimizer):
        train(model, batches, loss_fn, optimizer)
        print("done")

    assert check("first_loop", printing).message.endswith("so will every later cell that trains with it.")
    assert "prints" not in check("first_loop", train).message


def test_a_solution_isnt_kept(folder):
    assert check("first_loop", train, scored=False).passed
    assert not FILE.exists()


SCALE = 4


def with_a_constant(model, batches, loss_fn, optimizer, n):
    counting(model, batches, lambda *both: loss_fn(*both) * SCALE / 4, optimizer, n)


def test_a_loop_that_needs_the_notebook_passes_and_isnt_kept(folder):
    verdict = check("accumulate_equal", with_a_constant)
    assert verdict.passed
    assert re.search("isn't kept.*`SCALE`", verdict.message)
    assert not FILE.exists()


def test_a_later_stage_stays_when_an_earlier_exercise_is_done_again(folder):
    check("accumulate_equal", counting)
    verdict = check("first_loop", train)
    assert verdict.passed
    assert "holds your loop after 04; to start again, delete it" in verdict.message
    assert FILE.read_text().startswith("# The loop after 04")


BROKEN = {
    "no Python": ("optimizer.step()", "optimizer.step(", r"can't be used \(SyntaxError: .*, line \d+\)"),
    "an error": ("def train", "1 / 0\ndef train", r"can't be used \(line 2, `1 / 0`: ZeroDivisionError"),
    "another loop": ("optimizer.zero_grad()", "pass", r"isn't right any more \("),
    "no train": ("def train", "def mine", r"`train`: NameError: name "),
    "no head": ("# The loop after 00", "# Mine", r"its first line should say"),
}


@pytest.mark.parametrize(("old", "new", "says"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_was_ruined_is_said_and_the_courses_loop_is_used(folder, capsys, old, new, says):
    check("first_loop", train)
    FILE.write_text(FILE.read_text().replace(old, new))
    capsys.readouterr()
    so_far = loop_so_far("00")
    assert judge("first_loop", so_far).passed
    assert re.search(f"course's loop after 00, because my_loop.py(?s:.*){says}", capsys.readouterr().out)


def test_in_a_test_no_file_is_read_or_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    FILE.write_text("1 / 0")
    loop_so_far("00")
    check("first_loop", train)
    assert "because" not in capsys.readouterr().out
    assert FILE.read_text() == "1 / 0"


def test_where_the_file_cant_be_written_the_loop_is_kept_in_this_kernel(folder, monkeypatch, capsys):
    monkeypatch.setattr(my_loop, "_unwritten", "")
    with monkeypatch.context() as read_only:
        read_only.setattr(my_loop, "FILE", folder / "nowhere" / "my_loop.py")
        assert "kept in this kernel alone, because" in check("first_loop", train).message
        loop_so_far("00")
        assert "Your loop after 00" in capsys.readouterr().out
    assert "kept in `my_loop.py`" in check("accumulate_equal", counting).message
    assert FILE.read_text().startswith("# The loop after 04")


def test_new_lines_are_marked_against_what_stood_before_however_often_an_exercise_is_answered(folder, capsys):
    def counting_to_the_end(model, batches, loss_fn, optimizer, n):
        batches = list(batches)
        for k, batch in enumerate(batches):
            if k % n == 0:
                optimizer.zero_grad()
            torch.div(loss_fn(model, batch), min(n, len(batches) - k // n * n)).backward()
            if k % n == n - 1 or k == len(batches) - 1:
                optimizer.step()

    check("accumulate_equal", counting)
    for _ in range(3):
        check("accumulate", counting_to_the_end)
    capsys.readouterr()
    loop_so_far("05")
    shown = capsys.readouterr().out
    assert "+     batches = list(batches)" in shown
    assert "+     for k, batch in" not in shown


def test_the_last_loop_serves_as_the_one_before_and_as_no_other(folder):
    FILE.write_text(f"# The loop after 10, kept by the course.\n{my_loop.of_the_course('10').text}")
    assert ["no_sync" in loop_so_far(after).__code__.co_names for after in ("08", "09")] == [False, True]


def test_a_notebook_that_doesnt_extend_the_loop_is_an_error():
    with pytest.raises(ValueError, match="after must be one of 00, 04"):
        loop_so_far("07")


# The course's own loops.

SIZES = 4, 4, 3, 4, 1, 4, 2


def weights(train, **more):
    torch.manual_seed(0)
    model = mlp(5, 4, 2).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = [torch.randn(size, 7, dtype=torch.float64) for size in SIZES]
    if dist.is_initialized():
        model, batches = DistributedDataParallel(model), batches[dist.get_rank() : 6 : 2]

    def loss_fn(model, batch):
        return mse_loss(model(batch[:, :5]), batch[:, 5:])

    if "scheduler" in more:
        more["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    losses = train(model, batches, loss_fn, optimizer, n=3, weight=len, **more)
    return [*model.parameters()], losses


MORE = {
    "06": {},
    "08": {"max_norm": 0.1, "scheduler": None},
    "09": {"max_norm": 0.1, "scheduler": None, "autocast": nullcontext(), "scaler": torch.amp.GradScaler("cpu")},
}
MORE["10"] = MORE["09"]


@pytest.mark.parametrize("after", MORE)
def test_the_courses_loop_makes_the_updates_of_train_epoch_to_the_last_bit(after):
    theirs, losses = weights(my_loop.train_of(my_loop.of_the_course(after)), **MORE[after])
    ours, expected = weights(train_epoch, **MORE[after])
    assert all(map(torch.equal, theirs, ours))
    assert losses is None or losses == pytest.approx(expected, rel=1e-12)


def test_the_last_loop_makes_the_updates_of_train_epoch_on_two_ranks_too_and_the_auditor_says_nothing():
    def on_a_rank(train, more):
        with gradaudit.audit() as report:
            found, losses = weights(train, **more)
        return [p.tolist() for p in found], losses, len(report.findings)

    last = my_loop.train_of(my_loop.of_the_course("10"))
    with Ranks(2) as two:
        here, there = two.run(on_a_rank, last, MORE["10"])
        expected, losses, _ = two.run(on_a_rank, train_epoch, MORE["10"])[0]
    assert here == there
    assert here[0] == expected
    assert here[1] == pytest.approx(losses, rel=1e-12)
    assert here[2] == 0


@pytest.mark.parametrize("after", CHECKED)
def test_the_courses_loop_passes_the_exercise(after):
    assert judge(CHECKED[after], my_loop.train_of(my_loop.of_the_course(after))).passed


def test_the_script_of_08_runs_beside_the_kept_loop_and_resumes(folder):
    set_up, *cells = NOTEBOOKS["08_training_loop"].code
    imports = [line for line in set_up.source.splitlines() if line.startswith(("import ", "from "))]
    script = [*imports, "from my_loop import train", *(cell.source for cell in cells if "script" in tags(cell))]
    jobs = ["path = Path('digits.pt')", "main(path, until=2)", "main(path)"]
    FILE.write_text(my_loop.of_the_course("08").text)
    (folder / "train.py").write_text("\n".join([*script, *jobs]))
    ran = run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=True)
    assert [line.split(",")[1] for line in ran.stdout.splitlines()] == [f" schedule {k}/36" for k in (12, 24, 36)]
