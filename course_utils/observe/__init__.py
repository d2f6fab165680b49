"""What a training loop does, seen from outside."""

from course_utils.observe.operations import count_operations
from course_utils.observe.trace import Event, Trace, record

__all__ = ["Event", "Trace", "count_operations", "record"]
