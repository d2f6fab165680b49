"""What a training loop does, seen from outside."""

from course_utils.observe.hooks import HookLog
from course_utils.observe.operations import Work, count_operations, count_work
from course_utils.observe.trace import Event, Trace, record

__all__ = ["Event", "HookLog", "Trace", "Work", "count_operations", "count_work", "record"]
