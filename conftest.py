"""How tests and notebooks run under pytest, all of them or one."""

import os

# Each worker and its kernel on one thread, unless told otherwise, and none that spins while it waits: several workers
# share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["COURSE_SCORE"] = "off"  # no test reads or writes the score that a learner keeps beside a notebook
os.environ.setdefault("TQDM_DISABLE", "1")  # nbval compares stderr, and a bar comes only where a machine is slow

LONGEST = (
    "test_torchrun.py",
    "07_distributed.ipynb",
    "09_capstone.ipynb",
    "test_ranks.py",
    "09b_should_you_accumulate.ipynb",
)


def pytest_collection_modifyitems(items):
    """What takes longest begins first: at the end a worker would wait for the other."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
