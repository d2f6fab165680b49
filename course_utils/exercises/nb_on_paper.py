"""The exercises on paper: numbers for blanks. Each mistake is the numbers that it leads to where they are wrong."""

from course_utils.exercises.bench import on_paper

DDP_ON_PAPER = on_paper(
    "ddp_on_paper",
    "ddp_options",
    # 8 ranks of 4 micro-batches of 32 samples; 3 buckets
    lambda: {"effective": 1024, "always": 12, "last": 3, "around_backward": 12, "momentum": 7 / 8, "twice": 5},
    ("one-rank-only", {"effective": 4 * 32}),
    ("without-buckets", {"always": 4, "last": 1, "around_backward": 4}),
    ("counted-on-all", {"always": 8 * 12, "last": 8 * 3, "around_backward": 8 * 12}),
    ("backward-alone", {"around_backward": 3}),
    ("who-forgets", {"momentum": 1 / 8}),
    ("one-micro-batch", {"effective": 8 * 32}),
    ("all-forget", {"momentum": 1}),
    ("dropped", {"twice": 1003 % 8}),
)

FITS_ON_PAPER = on_paper(
    "fits_on_paper",
    "memory",
    # what is left of 1000 MB, over what one sample adds
    lambda: {"plain": 400 // 40, "checkpointed": 400 // 20, "sgd": 700 // 40, "adapters": 810 // 38, "n": 7},
    ("forgets-the-state", {"plain": 17, "checkpointed": 35, "n": 4}),
    ("forgets-gradients", {"plain": 13, "checkpointed": 27, "sgd": 21, "n": 5}),
    ("activations-alone", {"plain": 25, "checkpointed": 50, "sgd": 25, "adapters": 26, "n": 3}),
    ("keeps-a-state", {"sgd": 10}),
    ("forgets-the-block", {"checkpointed": 80}),
    ("everything-trains", {"adapters": 9}),
    ("not-rounded", {"sgd": 17.5, "adapters": 810 / 38, "n": 6.4}),
)

DEFAULT, FUSED = "calls of a default AdamW's step", "calls of a fused AdamW's step"
SCALER_LOG = on_paper(
    "scaler_log",
    "skipped_steps",
    lambda: {"updates": 8, DEFAULT: 8, FUSED: 10, "updates if zeroed only after an update": 3},
    ("all-counted", {"updates": 10}),
    ("default-called", {DEFAULT: 10}),
    ("fused-not-called", {FUSED: 8}),
    ("infinity-forgotten", {"updates if zeroed only after an update": 8}),
)

BOWL = "zeroed w2", "zeroed w3", "forgotten w2", "forgotten w3", "forgotten .grad"
BOWL_ON_PAPER = on_paper(
    "bowl_on_paper",
    "where_forgetting_leads",
    lambda: dict(zip(BOWL, (4, -8, 1, 1, 4 + 4 * -2 + 4 * 1), strict=True)),  # the slope is 4w: 4, then -8, then 4
    ("swapped", dict(zip(BOWL, (1, 1, 4, -8, 16), strict=True))),
    ("uphill", dict(zip(BOWL, (16, 64, 19, 91, 96), strict=True))),
    ("decays", {"forgotten w3": 4, "forgotten .grad": -4}),
    ("none-is-not-zero", {"forgotten .grad": None}),
)
