import gc
import os
from pathlib import Path

# Each worker and its kernel on one thread, unless told otherwise, and none that spins while it waits: several workers
# share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TQDM_DISABLE", "1")  # nbval compares stderr, and a bar comes only where a machine is slow

import pytest
import torch


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


@pytest.fixture
def as_in_a_kernel():
    """Code of a notebook runs here as in its kernel, and leaves nothing behind."""
    where, dtype, random_state = os.getcwd(), torch.get_default_dtype(), torch.get_rng_state()
    os.chdir(Path(__file__).parent.parent / "notebooks")
    yield
    os.chdir(where)
    torch.set_default_dtype(dtype)
    torch.set_rng_state(random_state)
