"""A zoo of buggy training loops from public reports, each with a fixed twin.

`ZOO[name].buggy()` trains a small model as the source did and returns the losses that its author
would have logged; `ZOO[name].fixed()` does the same with the bug taken out and nothing else
changed. Sizes and data are this course's own; what comes in which order is the source's. Needs
torch alone.

>>> specimen = ZOO["tail-divided-by-n"]
>>> specimen.rule, specimen.url
('loss-scale', 'https://github.com/Lightning-AI/pytorch-lightning/issues/19987')

There is a file for each rule of the auditor. To add a loop, decorate it with `@Specimen(...)` in
the file of its rule; `fix` says which lines become which.
"""

from importlib import import_module

from course_utils.zoo.registry import ZOO, Specimen

__all__ = ["ZOO", "Specimen"]

for _rule in (  # as a reader meets them
    "stale_gradients", "discarded_gradients", "empty_step", "foreign_gradients", "orphan_parameters",
    "irregular_window", "leftover_gradients", "loss_scale", "token_weights", "clip_timing", "scaler_timing",
    "scheduler_cadence", "held_graphs", "batchnorm", "low_precision_accumulation", "unused_loss",
):  # fmt: skip
    import_module(f"{__name__}.{_rule}")
