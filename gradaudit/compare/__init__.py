"""What was observed and the intended windows, compared: which calls an update used, how many, how much each counts.

Whether one is meant is not decided here: `doubts` says what speaks for it.
"""

from importlib import import_module

from gradaudit.compare.rules import RULES, Difference

__all__ = ["RULES", "Difference"]

for _subject in ("membership", "foreign", "sizes", "coefficients", "timing", "memory"):  # in the order of a report
    import_module(f"gradaudit.compare.{_subject}")
