"""The auditor on public programs, data/measurements/real_code.csv: `python tests/benchmarks/real_code.py`.

For each set and verdict written before the first run: how many programs, and in how many it then found an error.
"""

import csv
from collections import Counter

from course_utils.data import read

rows = list(csv.DictReader(read("measurements/real_code.csv").decode().splitlines()))
programs = Counter((row["set"], row["expected"].split()[0].strip(":,")) for row in rows)
errors = Counter((row["set"], row["expected"].split()[0].strip(":,")) for row in rows if "error" in row["found"])
for (of, verdict), number in programs.items():
    print(f"set {of}: {number} expected {verdict}, an error in {errors[of, verdict]}")
