"""The comparison with other checkers: the table of docs/auditor.md is the record."""

import json
import re
from pathlib import Path

from course_utils.data import read

PAGE = (Path(__file__).parents[1] / "docs" / "auditor.md").read_text(encoding="utf-8")


def test_the_table_is_the_record():
    table = re.findall(r"^\| ([\w-]+)(?: ([\d.]+))? \| [^|]+ \| (\d+ of \d+) \| (\d+) \|", PAGE, flags=re.M)
    rows = json.loads(read("measurements/checkers.json"))["rows"]
    counts = [(row["version"], f"{len(row['found'])} of {row['loops']}", str(len(row["fixed"]))) for row in rows]
    order = [name.lower().replace("-", "_") for name, *_ in table]
    assert dict(zip(order, (row for _, *row in table), strict=True)) == {
        row["checker"]: [*count] for row, count in zip(rows, counts, strict=True)
    }
