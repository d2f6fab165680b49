"""The exercise of *shards and pipelines* on paper: how long two schedules take, and how many activations they hold."""

from collections.abc import Iterator

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

STAGES, MICRO_BATCHES = 3, 6

_FILL = STAGES - 1  # slots until the last stage can begin, and again until the first one has ended
_BUSY = 2 * MICRO_BATCHES

WANT = {
    "slots": _BUSY + 2 * _FILL,
    "idle": 2 * _FILL,
    "gpipe": MICRO_BATCHES,
    "first": STAGES,
    "last": 1,
}


def _slips() -> Iterator[Slip]:
    yield Slip("no-bubble", "the stages do not begin at the same time", {"slots": _BUSY, "idle": 0})
    yield Slip(
        "one-way", "what fills on the way forward drains on the way back", {"slots": _BUSY + _FILL, "idle": _FILL}
    )
    yield Slip("one-way", "that is the way forward only", {"slots": MICRO_BATCHES + _FILL})
    yield Slip("one-after-another", "stages work at the same time", {"slots": _BUSY * STAGES})
    yield Slip("all-stages", "one stage was asked for", {"idle": 2 * _FILL * STAGES})
    yield Slip("frees-too-soon", "GPipe runs no backward pass before the last forward pass", {"gpipe": STAGES})
    yield Slip("frees-too-soon", "GPipe runs no backward pass before the last forward pass", {"gpipe": 1})
    yield Slip("holds-all", "1F1B frees one before it begins the next", {"first": MICRO_BATCHES, "last": MICRO_BATCHES})
    yield Slip("swapped", "which stage gets its gradient back sooner?", {"first": 1, "last": STAGES})
    yield Slip("one-too-few", "the micro-batch on the last stage counts too", {"first": STAGES - 1})
    yield Slip("one-too-few", "while a pass runs backward, its activations are there", {"last": 0})


@exercise(
    "pipeline_on_paper",
    notebook="shards_and_pipelines",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank with a number.",
        "no-bubble": "Draw a row of boxes for each stage. In which slot can the last stage run its first pass?",
        "one-way": "Draw the backward passes too: which stage begins them, and which ends last?",
        "one-after-another": "What does the first stage do while the second one works on micro-batch 0?",
        "all-stages": "Count the empty slots in the first row of your drawing.",
        "frees-too-soon": "Look at the order in which GPipe runs its passes. When is the first backward pass?",
        "holds-all": "In the figure, what does 1F1B run after a backward pass, and how high does the line go?",
        "swapped": "Follow micro-batch 0: how long does each stage wait for its gradient?",
        "one-too-few": "Which micro-batches are on their way when the first backward pass of a stage begins?",
        "wrong-value": "Draw a row of boxes for each stage, F0 to F5 and B0 to B5, each in the first slot it can take.",
    },
)
def _pipeline_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return "16 slots, 4 of them idle on each stage, and 6, 3 and 1 micro-batches alive."
