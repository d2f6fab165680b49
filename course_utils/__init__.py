"""Gradient accumulation and zeroing in PyTorch: the course's helpers.

Loops: `windows`, `train_epoch`, `evaluate`. Looking: `record`, `ledger`, `show`, `saved_bytes`, `plan_memory`.
Practice: `predict`, `check`, `recall`, `progress`, `explore`. Data and models: `digits`, `words`, `mlp`, `Tally`.
"""

from importlib import import_module

from course_utils.data import digits, words
from course_utils.loops import evaluate, train_epoch, windows
from course_utils.memory import plan_memory, saved_bytes
from course_utils.models import Tally, mlp
from course_utils.observe import record

_LATER = {  # these need matplotlib or ipywidgets: imported when they are first used
    "ledger": "plots",
    "show": "practice.display",
    "predict": "practice",
    "check": "practice",
    "recall": "practice",
    "progress": "practice",
    "explore": "practice",
}

__all__ = [  # noqa: RUF022
    "windows", "train_epoch", "evaluate", "record", "ledger", "show", "saved_bytes", "plan_memory",
    "predict", "check", "recall", "progress", "explore", "digits", "words", "mlp", "Tally",
]  # fmt: skip


def __getattr__(name: str):
    if name in _LATER:
        return getattr(import_module(f"course_utils.{_LATER[name]}"), name)
    raise AttributeError(f"module 'course_utils' has no attribute {name!r}")
