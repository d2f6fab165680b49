"""What a training loop does, seen from outside."""

from course_utils.observe.noise import ratio_interval, sample_gradients, watch_norms
from course_utils.observe.operations import Work, count_operations, count_work
from course_utils.observe.trace import Event, Trace, record

__all__ = [
    "Event",
    "Trace",
    "Work",
    "count_operations",
    "count_work",
    "ratio_interval",
    "record",
    "sample_gradients",
    "watch_norms",
]
