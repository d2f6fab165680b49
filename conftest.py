"""How tests and notebooks run under pytest, all of them or one."""

import os

# Some tests wait for a deadline, a kernel or ranks: one worker more than there are cores.
os.environ.setdefault("PYTEST_XDIST_AUTO_NUM_WORKERS", str((os.cpu_count() or 1) + 1))
# Several workers and their kernels share the cores: one thread each, and none that spins while it waits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TQDM_DISABLE", "1")  # nbval compares stderr, and a bar comes only where a machine is slow
