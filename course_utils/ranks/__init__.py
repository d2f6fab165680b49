"""Several ranks on this machine: processes that form one `torch.distributed` group. For lessons and tests.

`Ranks` runs a function on every rank and returns the results.
"""

from course_utils.ranks.group import RankError, Ranks

__all__ = ["RankError", "Ranks"]
