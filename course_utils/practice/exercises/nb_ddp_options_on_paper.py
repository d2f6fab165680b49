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
        *edits("one-rank-only", "ranks * n * size", "n * size"),
        *edits("one-micro-batch", "ranks * n * size", "ranks * size"),
        *edits("without-buckets", "buckets, samples = 8, 4, 32, 3", "buckets, samples = 8, 4, 32, 1"),
        *edits("counted-on-all", "    padded =", "    buckets *= ranks\n    padded ="),
        *edits("backward-alone", AROUND, '"around_backward": buckets'),
        *edits("backward-alone/buckets", AROUND, '"around_backward": 1'),
        *edits("who-forgets", MOMENTUM, "1 / ranks"),
        *edits("all-forget", MOMENTUM, "1"),
        *edits("dropped", "padded - samples", "samples % ranks"),
        *edits("dropped/equal", "padded - samples", "0"),
    ],
)
