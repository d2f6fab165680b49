"""The memory of a training loop: what it holds, and what the allocator gave it.

>>> import torch
>>> model = torch.nn.Linear(64, 10)
>>> with allocated() as memory, saved_bytes(model) as saved:
...     y = model(torch.zeros(8, 64)).exp()
>>> saved.peak, memory.peak  # an input and a result; `allocated` also counts unsaved tensors
(2368, 2688)
"""

from course_utils.memory.allocator import allocated
from course_utils.memory.held import held_bytes, resident_bytes
from course_utils.memory.saved import saved_bytes

__all__ = ["allocated", "held_bytes", "resident_bytes", "saved_bytes"]
