"""What a training loop does, seen from outside."""

from course_utils.observe.operations import count_operations
from course_utils.observe.trace import Event, Trace, record
from course_utils.observe.work import Work, count_work

__all__ = ["Event", "Trace", "Work", "count_operations", "count_work", "record"]
