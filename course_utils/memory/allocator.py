"""How much memory the allocator gave to a loop. Needs torch alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy


class Allocated:
    """The `peak` of what an allocator gave out at once, in bytes; there once the block has ended."""

    peak: int


@contextmanager
def allocated(device: str = "cpu") -> Iterator[Allocated]:
    """Asks the allocator how much memory the block took at its worst moment, beyond what was there before.

    On a GPU that is `torch.cuda.max_memory_allocated`. On the CPU torch's profiler is told of each piece of memory
    that is given out or comes back; here its older form is read, which writes nothing to stderr.

    **Yields:** an `Allocated`, whose `peak` can be read after the block.

    >>> with allocated() as memory:
    ...     x = torch.zeros(1000)
    ...     x = x.exp()                             # 4,000 bytes more, while the first are still there
    >>> memory.peak
    8000
    """
    found = Allocated()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield found
        found.peak = torch.cuda.max_memory_allocated(device) - before
        return
    options = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, options))
    try:
        yield found
    finally:
        threads = _disable_profiler_legacy()
    events = [event for thread in threads for event in thread]
    start = next(event for event in events if event.name() == "__start_profile")
    now = found.peak = 0
    for event in sorted(events, key=start.cpu_elapsed_us):
        if event.kind() == "memory_alloc":
            now += event.cpu_memory_usage()
            found.peak = max(found.peak, now)
