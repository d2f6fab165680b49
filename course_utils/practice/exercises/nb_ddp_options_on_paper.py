"""The exercise of *DDP's options* on paper: what eight ranks send, hold and forget."""

from collections.abc import Iterator

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

RANKS, N, SIZE, BUCKETS, SAMPLES = 8, 4, 32, 3, 1003

_PADDED = -(-SAMPLES // RANKS) * RANKS

WANT = {
    "effective": RANKS * N * SIZE,
    "always": N * BUCKETS,
    "last": BUCKETS,
    "around_backward": N * BUCKETS,
    "momentum": (RANKS - 1) / RANKS,
    "twice": _PADDED - SAMPLES,
}


def _slips() -> Iterator[Slip]:
    yield Slip("one-rank-only", "that is one rank's share of the batch", {"effective": N * SIZE})
    yield Slip("one-micro-batch", "that is one micro-batch of each rank", {"effective": RANKS * SIZE})
    yield Slip(
        "without-buckets", "each bucket is all-reduced on its own", {"always": N, "last": 1, "around_backward": N}
    )
    all_ranks = {"always": RANKS * N * BUCKETS, "last": RANKS * BUCKETS, "around_backward": RANKS * N * BUCKETS}
    yield Slip("counted-on-all", "all ranks take part in the same all-reduce, so count those of one rank", all_ranks)
    yield Slip("backward-alone", "the forward pass decides", {"around_backward": BUCKETS})
    yield Slip("backward-alone", "the forward pass decides, and each bucket is sent", {"around_backward": 1})
    yield Slip("who-forgets", "count the ranks that keep their gradient", {"momentum": 1 / RANKS})
    yield Slip("all-forget", "one rank does clear its gradient", {"momentum": 1})
    yield Slip("dropped", "by default nothing is dropped", {"twice": SAMPLES % RANKS})
    yield Slip("dropped", "8 ranks need equally many samples each", {"twice": 0})


@exercise(
    "ddp_on_paper",
    notebook="ddp_options",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank with a number.",
        "one-rank-only": "Each rank has micro-batches of its own.",
        "one-micro-batch": "How many micro-batches does a rank accumulate before it steps?",
        "without-buckets": "What does DDP gather gradients in before it sends them, and how many of those are there?",
        "counted-on-all": "An all-reduce is one call that every rank makes.",
        "backward-alone": "Which call has to see `no_sync()`: the forward pass, or `backward()`?",
        "who-forgets": "`if rank == 0:` in front of `zero_grad()`: which ranks skip it?",
        "all-forget": "After an average over 8 ranks, how much of the old gradient is left if one rank has cleared it?",
        "dropped": "Every rank gets equally many samples. What fills the gap?",
        "wrong-value": "Do one blank at a time: draw the window of one rank, and mark which backward passes send.",
    },
)
def _ddp_on_paper(answer: dict) -> str:
    judge_numbers(answer, WANT, _slips())
    return "a batch of 1,024, 12, 3 and 12 all-reduces, momentum 0.875, and 5 samples twice."
