"""Gradient accumulation and zeroing in PyTorch: the course's helpers.

The rooms. A room imports only rooms above it in this list, never below. Helpers, which you could
copy into a project of your own:

    loops      train_epoch, evaluate, windows, backward_window: accumulation, exactly, also on ranks
    data       digits, words, next_letters: real data, shipped with the course
    source     functions from source texts, with lines for tracebacks
    models     mlp, Tally, Transformer: small models; shares_of: how much a micro-batch counts
    memory     saved_bytes, held_bytes: what a training step holds
    record     record: what any loop does, seen from outside
    collectives  count_collectives, held_gradients: what a rank sends and holds
    ranks      Ranks: a function on several ranks; scripts in processes of their own
    plots      ledger and the other figures; they draw and compute nothing
    ask        predict, recall: what a learner answers
    stepping   step_through: a training loop moment by moment; play_with: at many settings

Course material that happens to be Python:

    zoo        buggy loops from public bugs, each with its fix
    project    the training script of notebook 12, and what accepts it, as a command
    my_loop    the training loop as each notebook leaves it: yours, on disk, or the course's
    exercises  check, and the exercises by notebook: a function an exercise
"""

from importlib import import_module
from importlib.util import find_spec

from course_utils.collectives import count_collectives, held_gradients
from course_utils.data import digits, next_letters, words
from course_utils.loops import MicroBatchFinder, backward_window, evaluate, train_epoch, windows
from course_utils.memory import held_bytes, saved_bytes
from course_utils.models import Tally, Transformer, mlp, shares_of
from course_utils.record import record

_LATER = {  # by room: these need more than torch, and are imported when they are first used
    "ranks": ["Ranks", "RankError"], "plots": ["ledger"], "ask.display": ["show", "show_table"],
    "ask": ["predict", "recall"], "exercises": ["check", "loop_so_far"], "stepping": ["step_through", "play_with"],
}  # fmt: skip

__all__ = [  # noqa: RUF022
    "windows", "backward_window", "train_epoch", "evaluate", "MicroBatchFinder",
    "record", "held_gradients", "count_collectives",
    "saved_bytes", "held_bytes",
    "Ranks", "RankError",
    "ledger", "show", "show_table",
    "digits", "words", "next_letters", "mlp", "Tally", "Transformer", "shares_of",
    "predict", "check", "recall", "step_through", "play_with", "loop_so_far",
]  # fmt: skip


_EXTRA = "cloudpickle", "ipywidgets", "matplotlib", "tqdm"


def __getattr__(name: str):
    if room := next((room for room, names in _LATER.items() if name in names), ""):
        if missing := [library for library in _EXTRA if find_spec(library) is None]:
            how = 'install the course with its extra `course`, as in pip install -e ".[course]"'
            raise ImportError(f"course_utils.{name} needs {', '.join(missing)}: {how}")
        return getattr(import_module(f"course_utils.{room}"), name)
    raise AttributeError(f"module 'course_utils' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # so that Tab offers what is imported later, too
