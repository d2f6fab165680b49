"""Groups of ranks: results and errors of every rank, what can travel, and no process left."""

import linecache
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from course_utils.ranks import RankError, Ranks


@pytest.fixture(scope="module")
def two():
    with Ranks(2, timeout=60) as group:
        yield group


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def alive(pids):
    return list(filter(exists, pids))


def add(number):
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return number + total.item(), dist.get_rank(), os.environ["WORLD_SIZE"]


def say():
    if dist.get_rank() == 0:
        time.sleep(0.3)  # the other rank answers first
    print(f"one from {dist.get_rank()}\ntwo")
    print("an aside", file=sys.stderr)
    return dist.get_rank()


def settings():
    return torch.get_default_dtype(), torch.rand(1).item(), torch.get_num_threads()


def fail_on_one(how):
    if dist.get_rank() == 1:
        if how == "raise":
            raise ValueError("the shard is empty")
        if how == "die":
            os.write(2, b"last words")
            os._exit(7)
        return "through"
    dist.barrier()


def test_results_come_in_the_order_of_ranks_and_prints_too(two, capsys):
    assert two.run(add, 10) == [(13.0, 0, "2"), (13.0, 1, "2")]
    capsys.readouterr()
    assert two.run(say) == [0, 1]
    shown = [f"rank {rank} | {line}\n" for rank in (0, 1) for line in (f"one from {rank}", "two", "an aside")]
    assert capsys.readouterr().out == "".join(shown)


def leave_things_changed():
    torch.set_default_dtype(torch.float16)
    torch.manual_seed(0)


def test_a_run_starts_from_the_state_of_this_process_whatever_the_run_before_has_left(two):
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    assert two.run(settings) == [(torch.float64, torch.rand(1).item(), 1)] * 2
    two.run(leave_things_changed)
    torch.manual_seed(5)
    assert two.run(settings) == [(torch.float64, torch.rand(1).item(), 1)] * 2


@pytest.mark.parametrize(
    ("how", "limit", "late", "said"),
    [
        (
            "raise",
            60,
            "when the group was ended",
            r'line \d+, in fail_on_one\n +raise ValueError\("the shard is empty"\)',
        ),
        ("die", 60, "when the group was ended", r"\nrank 1: its process ended with status 7\nlast words"),
        ("hang", 1.5, "after 1.5 s", r"ranks that finished without an error: \[1\]"),
    ],
)
def test_a_rank_that_fails_ends_the_run_and_the_next_run_starts_new_processes(two, how, limit, late, said):
    before = two.run(os.getpid)
    two.run(settings)  # the ranks import this file, which may take longer than the limit
    with pytest.raises(RankError, match=said) as caught:
        two.run(fail_on_one, how, timeout=limit)
    error = caught.value
    assert how == "die" or error.errors[0].startswith(f"had not ended {late}, and was here:\n")
    assert how == "die" or "dist.barrier()" in error.errors[0]
    assert set(error.errors) == ({0} if how == "hang" else {0, 1})
    assert error.results == ({1: "through"} if how == "hang" else {})
    assert not alive(before)
    assert [rank for _, rank, _ in two.run(add, 0)] == [0, 1]


def test_what_cannot_be_sent_is_refused_before_anything_runs(two):
    before = two.run(os.getpid)
    for call in [(add, (number for number in range(3))), (lambda stream=sys.stdout: stream,)]:
        with pytest.raises(Exception, match=r"[Cc]annot pickle"):
            two.run(*call)
    assert two.run(os.getpid) == before
    with pytest.raises(RankError, match="cannot pickle 'generator'"):
        two.run(lambda: (number for number in range(3)))
    with pytest.raises(RankError, match=r"Can't pickle <class '.*Local'>"):
        two.run(lambda: type("Local", (), {})())


NOTEBOOK = """
import linecache, os, signal, sys, threading, time
import torch, torch.distributed as dist
from course_utils.ranks import RankError, Ranks

SCALE = 10

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x).numel() * SCALE

def work():
    return Net()(torch.ones(4, 2))

def hang():
    time.sleep(600)

def nested(k):
    return lambda n: n + k

two = Ranks(2, timeout=60)
print(two.run(work), two.run(nested(5), 1), two.run(lambda: SCALE), two.run(lambda: dist.config.__name__)[0])
SCALE = 100
print(two.run(work))

cell = "def fails():\\n    raise ValueError('in a cell')  # this line\\n"
linecache.cache["/no/such/cell"] = (len(cell), None, cell.splitlines(keepends=True), "/no/such/cell")
exec(compile(cell, "/no/such/cell", "exec"))
try:
    two.run(fails)
except RankError as error:
    print(*(line for line in error.errors[1].splitlines() if line.strip(" ^")), sep="\\n")

print(*two.run(os.getpid), flush=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell runs the tests in the background
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    two.run(hang, timeout=600)
except KeyboardInterrupt as stop:
    print("interrupted", str(stop).count(", in hang\\n"), flush=True)
print(*two.run(os.getpid), flush=True)
two.run(hang, timeout=600)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """One process for the tests below. Like a notebook it has no main guard."""
    path = tmp_path_factory.mktemp("ranks") / "notebook.py"
    path.write_text(NOTEBOOK, encoding="utf-8")
    command = [sys.executable, str(path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    guard = threading.Timer(120, parent.kill)  # what hangs fails
    guard.start()
    yield parent
    guard.cancel()
    parent.kill()
    parent.wait()
    parent.stdout.close()


def test_functions_and_classes_of_a_main_module_travel_and_their_errors_show_the_source(notebook):
    assert [notebook.stdout.readline().rstrip() for _ in range(6)] == [
        "[40, 40] [6, 6] [10, 10] torch.distributed.config",
        "[400, 400]",
        "Traceback (most recent call last):",
        '  File "/no/such/cell", line 2, in fails',
        "    raise ValueError('in a cell')  # this line",
        "ValueError: in a cell",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
def test_an_interrupt_and_a_killed_parent(notebook):
    first = notebook.stdout.readline().split()
    assert notebook.stdout.readline() == "interrupted 2\n"
    assert len(first) == 2
    assert not alive(map(int, first))
    ranks = [int(pid) for pid in notebook.stdout.readline().split()]
    assert len(alive(ranks)) == 2
    notebook.send_signal(signal.SIGKILL)  # nothing in the parent can clean up after this
    notebook.wait()
    end = time.monotonic() + 30
    while alive(ranks) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(ranks)


def test_the_line_of_a_cell_is_shown_whatever_time_ipython_has_noted(two):
    source = "def fails():\n    raise KeyError('lost')\n"
    linecache.cache["<cell>"] = (len(source), time.time(), source.splitlines(keepends=True), "<cell>")  # as IPython 7
    names = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec"), names)
    with pytest.raises(RankError, match=r"line 2, in fails\n +raise KeyError\('lost'\)"):
        two.run(names["fails"])
