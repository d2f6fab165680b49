"""The course's figures. They draw what they are given and compute nothing; `show()` puts one into a notebook.

`traces` draws ledgers; `lines`, `charts` and `timelines` draw numbers; `diagrams` draws words. All share `look`.
"""

from course_utils.plots.charts import bars, block_rows, blocks, errors, pictures, shares
from course_utils.plots.diagrams import backward_passes, orders, questions, windows
from course_utils.plots.lines import arrows, curves, efficiency, intervals, steps_downhill
from course_utils.plots.timelines import layers, ranks, stems
from course_utils.plots.traces import ledger, ledgers, silhouettes

__all__ = [  # noqa: RUF022
    "ledger", "ledgers", "silhouettes", "windows", "backward_passes", "orders", "questions", "curves", "intervals",
    "efficiency", "steps_downhill", "arrows", "shares", "bars", "errors", "blocks", "block_rows", "pictures", "layers",
    "ranks", "stems",
]  # fmt: skip
