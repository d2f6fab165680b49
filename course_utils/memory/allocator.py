"""The allocator's peak during a loop."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy


class Allocated:
    """The `peak` of the bytes allocated at once, set when the block ends."""

    peak: int


@contextmanager
def allocated() -> Iterator[Allocated]:
    """Measures the peak of the memory that the block allocates.

    On the CPU, torch's profiler sees each allocation and each release; the legacy profiler is used
    because it prints nothing. (On a GPU, read `torch.cuda.max_memory_allocated()`.)

    Example:
        >>> with allocated() as memory:
        ...     x = torch.zeros(1000)
        ...     x = x.exp()  # 4,000 bytes more, while the first 4,000 still exist
        >>> memory.peak
        8000
    """
    result = Allocated()
    gc.collect()  # garbage that was freed inside the block would draw the profiler's warning
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
