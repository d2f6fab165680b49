"""The auditor on public programs, recorded: `python tests/benchmarks/real_code.py`.

Of real_code.csv, with a line for each program: for each set and verdict written before the first
run, how many programs, and in how many it then found an error. Of real_code_sets.csv, which counts
faults (a program may have several), the totals that README and *how the auditor knows* state. There
a program of set 3 whose verdict was wrong counts as what it is. "After repairs" is what the auditor
said once it had been repaired for that set; then it was rewritten, and sets 12 and 13 are first
runs of rewritten auditors. The right programs of set 14 were chosen because they look unusual, those
of set 15 as they came.
"""

import csv
from collections import Counter

from course_utils.data import read


def table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(read(f"measurements/{name}").decode().splitlines()))


programs, sets = table("real_code.csv"), table("real_code_sets.csv")
expected = Counter((row["set"], row["expected"].split()[0].strip(":,")) for row in programs)
errors = Counter((row["set"], row["expected"].split()[0].strip(":,")) for row in programs if "error" in row["found"])
for (of, verdict), number in expected.items():
    print(f"set {of}: {number} expected {verdict}, an error in {errors[of, verdict]}")

print(f"{len(programs)} programs of {len({row['repository'] for row in programs})} repositories")
for name, chosen in {"all sets": sets, "the last set": sets[-1:]}.items():
    print(f"{name}:")
    for column in list(sets[0])[1:]:
        print(f"  {column}: {sum(int(row[column]) for row in chosen if row[column].isdigit())}")
