"""Several ranks on this machine, for lessons and tests: processes in one `torch.distributed` group.

`Ranks` runs a function on every rank and returns the results.
"""

from course_utils.ranks.group import RankError, Ranks

__all__ = ["RankError", "Ranks"]
