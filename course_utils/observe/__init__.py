"""What a training loop does, seen from outside."""

from course_utils.observe.collectives import Collectives, count_collectives
from course_utils.observe.formats import formats_of
from course_utils.observe.hooks import HookLog
from course_utils.observe.noise import ratio_interval, sample_gradients, watch_norms
from course_utils.observe.operations import Work, count_operations, count_work
from course_utils.observe.sharded import held_gradients
from course_utils.observe.trace import Event, Trace, record

__all__ = [
    "Collectives",
    "Event",
    "HookLog",
    "Trace",
    "Work",
    "count_collectives",
    "count_operations",
    "count_work",
    "formats_of",
    "held_gradients",
    "ratio_interval",
    "record",
    "sample_gradients",
    "watch_norms",
]
