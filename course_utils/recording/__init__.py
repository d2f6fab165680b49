"""What a training loop does, seen from outside."""

from course_utils.recording.collectives import Collectives, count_collectives, held_gradients
from course_utils.recording.formats import formats_of
from course_utils.recording.operations import Work, count_work
from course_utils.recording.trace import Event, Trace, record

__all__ = [
    "Collectives",
    "Event",
    "Trace",
    "Work",
    "count_collectives",
    "count_work",
    "formats_of",
    "held_gradients",
    "record",
]
