"""Memory of a loop: what it keeps for backward, what the allocator gave it, what it will need. Needs torch alone.

`saved_bytes` counts the activations that wait for their backward, `allocated` reads the peak of everything from the
allocator, `plan_memory` finds that peak for a model of any size without using it.

>>> import torch
>>> model = torch.nn.Linear(64, 10)
>>> with allocated() as memory, saved_bytes(model) as saved:
...     y = model(torch.zeros(8, 64)).exp()
>>> saved.peak, memory.peak                     # one input and one result; with them what is not kept
(2368, 2688)
"""

from course_utils.memory.allocator import Allocated, allocated
from course_utils.memory.planning import Plan, plan_memory
from course_utils.memory.saved import SavedBytes, saved_bytes

__all__ = ["Allocated", "Plan", "SavedBytes", "allocated", "plan_memory", "saved_bytes"]
