"""How much memory the allocator gave to a loop."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy


class Allocated:
    """The `peak` of what was allocated at once, in bytes; set when the block ends."""

    peak: int


@contextmanager
def allocated() -> Iterator[Allocated]:
    """Asks the allocator how much memory the block used at its peak, beyond what was in use before.

    On the CPU, torch's profiler sees each allocation and each release; the legacy profiler is used because it prints
    nothing. (On a GPU, read `torch.cuda.max_memory_allocated()`.)

    Example:
        >>> with allocated() as memory:
        ...     x = torch.zeros(1000)
        ...     x = x.exp()                     # 4,000 bytes more, while the first 4,000 still exist
        >>> memory.peak
        8000
    """
    result = Allocated()
    gc.collect()  # what is garbage already must not be freed inside of the block: the profiler would write a warning
    options = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, options))
    try:
        yield result
    finally:
        threads = _disable_profiler_legacy()
    events = [event for thread in threads for event in thread]
    start = next(event for event in events if event.name() == "__start_profile")
    in_use = result.peak = 0
    for event in sorted(events, key=start.cpu_elapsed_us):
        if event.kind() == "memory_alloc":
            in_use += event.cpu_memory_usage()
            result.peak = max(result.peak, in_use)
