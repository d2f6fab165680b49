"""Several ranks on this machine: processes that form one `torch.distributed` group. For lessons and tests.

`Ranks` runs a function on every rank and returns the results; `torchrun` runs a script as a cluster would.
"""

from course_utils.ranks.group import RankError, Ranks
from course_utils.ranks.script import ScriptError, torchrun

__all__ = ["RankError", "Ranks", "ScriptError", "torchrun"]
