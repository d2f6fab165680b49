"""The exercise of *DDP's options* on paper: what eight ranks send, hold and forget."""

from course_utils.practice.bench import edits, on_paper


def solution():
    ranks, n, size, buckets, samples = 8, 4, 32, 3, 1003
    padded = -(-samples // ranks) * ranks
    return {
        "effective": ranks * n * size,
        "always": n * buckets,
        "last": buckets,
        "around_backward": n * buckets * 1,
        "momentum": (ranks - 1) / ranks,
        "twice": padded - samples,
    }


AROUND, MOMENTUM = '"around_backward": n * buckets * 1', "(ranks - 1) / ranks"
DDP_ON_PAPER = on_paper(
    "ddp_on_paper",
    "ddp_options",
    solution,
    [
        *edits("one-rank-only", "that is one rank's share of the batch", "ranks * n * size", "n * size"),
        *edits("one-micro-batch", "that is one micro-batch of each rank", "ranks * n * size", "ranks * size"),
        *edits("without-buckets", "each bucket is all-reduced on its own", "buckets, samples = 8, 4, 32, 3",
               "buckets, samples = 8, 4, 32, 1"),
        *edits("counted-on-all", "all ranks take part in the same all-reduce, so count those of one rank",
               "    padded =", "    buckets *= ranks\n    padded ="),
        *edits("backward-alone", "the forward pass decides", AROUND, '"around_backward": buckets'),
        *edits("backward-alone", "the forward pass decides, and each bucket is sent", AROUND, '"around_backward": 1'),
        *edits("who-forgets", "count the ranks that keep their gradient", MOMENTUM, "1 / ranks"),
        *edits("all-forget", "one rank does clear its gradient", MOMENTUM, "1"),
        *edits("dropped", "by default nothing is dropped", "padded - samples", "samples % ranks"),
        *edits("dropped", "8 ranks need equally many samples each", "padded - samples", "0"),
    ],
    passed="a batch of 1,024, 12, 3 and 12 all-reduces, momentum 0.875, and 5 samples twice.",
)  # fmt: skip
