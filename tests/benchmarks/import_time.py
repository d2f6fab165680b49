"""How much `import course_utils` adds to `import torch`, in seconds: the median of nine new Pythons."""

import statistics
import subprocess
import sys

CODE = """
import time, torch
start = time.perf_counter()
import course_utils
print(time.perf_counter() - start)
"""

if __name__ == "__main__":
    runs = [subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True) for _ in range(9)]
    print(f"import course_utils adds {statistics.median(float(run.stdout) for run in runs):.3f} s")
