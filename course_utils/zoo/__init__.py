"""A zoo of buggy training loops: each was found in someone's code and reported in public; each has a fixed twin.

`ZOO[name].buggy()` trains a small model as the source did and returns the losses that its author would have logged;
`ZOO[name].fixed()` does the same with the bug taken out and nothing else changed. Sizes and data are this course's
own; what comes in which order is the source's. Needs torch alone.

>>> specimen = ZOO["tail-divided-by-n"]
>>> specimen.rule, specimen.url
('loss-scale', 'https://github.com/Lightning-AI/pytorch-lightning/issues/19987')

There is a file for each rule of the auditor. To add a loop, decorate it with `@specimen(...)` in the file of its rule;
`fix` says which lines become which. A new file needs no entry anywhere.
"""

from importlib import import_module
from pkgutil import iter_modules

from course_utils.zoo.registry import ZOO, Specimen, specimen

__all__ = ["ZOO", "Specimen", "specimen"]

_ORDER = (  # of the rules, as a reader meets them; other files follow
    "stale_gradients", "discarded_gradients", "empty_step", "foreign_gradients", "orphan_parameters",
    "irregular_window", "leftover_gradients", "loss_scale", "token_weights", "clip_timing", "scaler_timing",
    "scheduler_cadence", "held_graphs", "batchnorm", "low_precision_accumulation",
)  # fmt: skip
_found = sorted(module.name for module in iter_modules(__path__))
for _name in sorted(_found, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
    import_module(f"{__name__}.{_name}")
