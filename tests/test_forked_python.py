"""Forks stand for Python: they run what they are told, end as it says, and only those who ask for forks get them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


def done(command, code):
    return subprocess.run([command, "-c", code], capture_output=True, text=True, check=False)


def test_a_fork_has_torch_and_what_tests_start_without_asking_has_not(quick_command):
    """Otherwise a test of what the package imports would look at a process that has imported everything."""
    has_torch = "import sys; print('torch' in sys.modules)"
    assert done(quick_command, has_torch).stdout == "True\n"
    assert done(sys.executable, has_torch).stdout == "False\n"


def test_a_fork_leaves_with_its_status_and_does_what_it_has_put_off_until_then(quick_command):
    left = done(quick_command, "import sys, weakref; weakref.finalize(sys, print, 'put off'); sys.exit(3)")
    assert (left.returncode, left.stdout, left.stderr) == (3, "put off\n", "")


def test_what_a_fork_leaves_in_the_temporary_folder_goes_with_the_process_that_forks(quick_command):
    folder = done(quick_command, "import tempfile; print(tempfile.gettempdir())").stdout.strip()
    assert Path(folder).parent == Path(quick_command).parent


@pytest.mark.parametrize(("chosen", "drawn_with"), [("", "agg"), ("svg", "svg")])
def test_matplotlib_draws_in_a_fork_with_what_its_environment_names(quick_command, monkeypatch, chosen, drawn_with):
    monkeypatch.setenv("MPLBACKEND", chosen)
    monkeypatch.delenv("DISPLAY", raising=False)
    code = "from matplotlib import pyplot; pyplot.figure(); print(pyplot.get_backend())"
    assert done(quick_command, code).stdout.lower() == f"{drawn_with}\n"
