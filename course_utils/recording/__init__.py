"""Records a training loop from outside: its events, its lines and its collectives."""

from course_utils.recording.collectives import Collectives, count_collectives, held_gradients
from course_utils.recording.trace import Event, Trace, record

__all__ = [
    "Collectives",
    "Event",
    "Trace",
    "count_collectives",
    "held_gradients",
    "record",
]
