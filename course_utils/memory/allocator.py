"""The allocator's peak during a loop."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from types import SimpleNamespace

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy


@contextmanager
def allocated() -> Iterator[SimpleNamespace]:
    """Measures the peak of the memory that the block allocates: `peak`, set when the block ends.

    On the CPU, torch's profiler sees each allocation and each release; the legacy profiler is used
    because it prints nothing. (On a GPU, read `torch.cuda.max_memory_allocated()`.)

    Example:
        >>> with allocated() as memory:
        ...     x = torch.zeros(1000)
        ...     x = x.exp()  # 4,000 bytes more, while the first 4,000 still exist
        >>> memory.peak
        8000
    """
    result = SimpleNamespace(peak=0)
    gc.collect()  # garbage that was freed inside the block would draw the profiler's warning
    options = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, options))
    try:
        yield result
    finally:
        threads = _disable_profiler_legacy()
    events = [event for thread in threads for event in thread]
    start = next(event for event in events if event.name() == "__start_profile")
    in_order = sorted(events, key=start.cpu_elapsed_us)
    changes = [event.cpu_memory_usage() for event in in_order if event.kind() == "memory_alloc"]
    result.peak = max(accumulate(changes, initial=0))
