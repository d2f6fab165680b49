"""The memory of a training loop: what it holds, and what the allocator gave it.

>>> import torch
>>> model = torch.nn.Linear(64, 10)
>>> with allocated() as memory, saved_bytes(model) as saved:
...     y = model(torch.zeros(8, 64)).exp()
>>> saved.peak, memory.peak  # an input and a result; `allocated` also counts unsaved tensors
(2368, 2688)
"""

from course_utils.memory.allocator import Allocated, allocated
from course_utils.memory.held import HeldBytes, held_bytes, resident_bytes, update_bytes
from course_utils.memory.saved import SavedBytes, saved_bytes

__all__ = [  # noqa: RUF022
    "SavedBytes", "saved_bytes", "HeldBytes", "held_bytes", "resident_bytes", "update_bytes", "Allocated", "allocated",
]  # fmt: skip
