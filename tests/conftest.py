"""Fixtures of many tests."""

import gc
import os
import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch

from gradaudit.observe.guard import ObserverFailure


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_not_searched():
    """An audit looks for optimizers among all living objects; torch's million are kept from it."""
    gc.collect(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def _torch_as_before():
    """Every test starts from the same seed and in float32, whatever the one before has set."""
    # The processor's alone: without a GPU, torch.manual_seed() notes its caller's stack three times
    # for later.
    torch.default_generator.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _accelerate_is_told_nothing():
    """What an Accelerator was told outlives it, and the auditor reads it."""
    yield
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(True)
        state.GradientState._reset_state()


@pytest.fixture(autouse=True)
def _the_observer_may_not_fail():
    """A user's training goes on without an auditor that has failed; here the test fails."""
    warnings.filterwarnings("error", category=ObserverFailure)  # until the test ends: pytest restores the filters


@pytest.fixture
def train_py(tmp_path):
    """Writes a script, and returns its path."""

    def write(source: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(source, encoding="utf-8")
        return path

    return write


@pytest.fixture
def interruptible():
    """This process and those that it starts hear Ctrl-C, also under a background shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def as_in_a_kernel():
    """Code of a notebook runs here as in its kernel, and leaves nothing behind."""
    where, dtype, random_state = os.getcwd(), torch.get_default_dtype(), torch.get_rng_state()
    os.chdir(Path(__file__).parent.parent / "notebooks")
    yield
    os.chdir(where)
    if torch.distributed.is_initialized():  # with a kernel it would end
        torch.distributed.destroy_process_group()
    torch.set_default_dtype(dtype)
    torch.set_rng_state(random_state)
