"""How tests and notebooks run under pytest, all of them or one."""

import gc
import os
import sys

import pytest

# Each worker and its kernel on one thread, unless told otherwise, and none that spins while it waits: several workers
# share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["COURSE_SCORE"] = "off"  # no test reads or writes the score that a learner keeps beside a notebook
os.environ.setdefault("TQDM_DISABLE", "1")  # nbval compares stderr, and a bar comes only where a machine is slow

# nbval imports nbformat, and that imports jsonschema, which would compile a grammar of web addresses, for 3 seconds in
# each process, to check formats that notebooks don't have. Without this module it leaves those formats out.
sys.modules.setdefault("rfc3987_syntax", None)

LONGEST = (
    "07_distributed.ipynb",
    "test_answers.py",
    "09_capstone.ipynb",
    "09c_memory.ipynb",
    "06c_noise_scale.ipynb",
    "08_pitfalls.ipynb",
    "09b_should_you_accumulate.ipynb",
    "test_planning.py",
)


def pytest_addoption(parser, pluginmanager):
    """Loads nbval, which pyproject.toml has kept from being loaded before this file."""
    if not pluginmanager.has_plugin("nbval"):
        pluginmanager.import_plugin("nbval.plugin")


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One worker more than there are cores: some tests wait for a deadline, for a kernel or for ranks."""
    return (yield) + 1


def pytest_collection_modifyitems(items):
    """What takes longest begins first: at the end a worker would wait for the other."""
    place = {name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports make a million objects that stay: no search for garbage goes through them, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
