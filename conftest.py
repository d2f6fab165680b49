"""How tests and notebooks run under pytest, all of them or one."""

import os
import sys

# Several workers and their kernels share the cores: one thread each, and none that spins while it waits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["COURSE_SCORE"] = "off"  # no test reads or writes the score that a learner keeps beside a notebook
os.environ.setdefault("TQDM_DISABLE", "1")  # nbval compares stderr, and a bar comes only where a machine is slow

# nbval imports nbformat, and that imports jsonschema, which would compile a grammar of web addresses, for 3 seconds in
# each process, to check formats that notebooks don't have. Without this module it leaves those formats out.
sys.modules.setdefault("rfc3987_syntax", None)
