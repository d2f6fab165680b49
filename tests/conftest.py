import gc
import os

# Each worker and its kernel on one thread, unless told otherwise, and none that spins while it waits: several workers
# share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TQDM_DISABLE", "1")  # nbval compares stderr, and a bar comes only where a machine is slow

import pytest
import torch


@pytest.hookimpl(wrapper=True)  # so that the groups are there when xdist asks for them
def pytest_collection_modifyitems(items):
    """What shares a file shares a worker, but for the falsifiers, which run all notebooks again: the longest file."""
    for item in items:
        if item.path.name != "test_falsifiers.py":
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    return (yield)


@pytest.fixture(scope="module")
def quick_scans():
    """The auditor searches among all living objects: those that are there before the tests are hidden from it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _torch_as_before():
    """Every test starts from the same seed and in the usual number type, whatever the one before has set."""
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
