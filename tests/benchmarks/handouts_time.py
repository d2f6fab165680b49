"""Builds all handouts twice: how long it takes, whether the bytes agree: `python tests/benchmarks/handouts_time.py`.

The bar is 30 seconds for A4 on 2 cores. Where other work runs beside it, the CPU seconds over 2 cores say more.
"""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from course_utils.publish.handouts import build


def timed(out: Path, paper: str) -> dict[str, bytes]:
    start, before = time.perf_counter(), os.times()
    files = build(out, paper=paper)
    now = os.times()
    cpu = sum(now[:4]) - sum(before[:4])
    print(f"{len(files)} files on {paper}: {time.perf_counter() - start:.1f} s, {cpu:.1f} CPU seconds")
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


with TemporaryDirectory() as folder:
    first, again = (timed(Path(folder, name), "a4") for name in ("first", "again"))
    timed(Path(folder, "letter"), "letter")
different = [name for name in first if first[name] != again[name]]
print("two builds give the same bytes:", not different, *different)
sys.exit(bool(different))
