"""What a training loop does, seen from outside."""

from course_utils.observe.trace import Event, Trace, record

__all__ = ["Event", "Trace", "record"]
