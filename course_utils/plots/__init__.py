"""The course's figures, which compute nothing; `show()` puts one into a notebook.

`traces` draws ledgers and piles; `charts` and `timelines` draw numbers; `diagrams` draws flows and
orders. All share `look`.
"""

from course_utils.plots.charts import curves, error_dots, image_row, shares
from course_utils.plots.diagrams import arrows, backward_passes, brackets, dials
from course_utils.plots.timelines import memory_layers, rank_timeline
from course_utils.plots.traces import ledger, ledgers

__all__ = [  # noqa: RUF022
    "ledger", "ledgers", "backward_passes", "brackets", "dials", "curves", "arrows", "shares", "error_dots",
    "image_row", "memory_layers", "rank_timeline",
]  # fmt: skip
