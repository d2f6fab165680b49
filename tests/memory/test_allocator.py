"""allocated reports the allocator's peak."""

import torch

from course_utils.memory import allocated


def test_the_allocators_peak_counts_what_exists_at_once():
    with allocated() as memory:
        x = torch.zeros(1000)
        y = torch.zeros(500)
        del x
        z = torch.zeros(900)
    assert memory.peak == 4 * 1500
    assert len(y) + len(z) == 1400
