"""A zoo of buggy training loops from public reports, each with a fixed twin.

`ZOO[name].buggy()` trains a small model as the source did and returns the losses that its author
would have logged; `ZOO[name].fixed()` does the same with the bug taken out and nothing else
changed. Sizes and data are this course's own; what comes in which order is the source's. Needs
torch alone.

>>> specimen = ZOO["tail-divided-by-n"]
>>> specimen.rule, specimen.url
('loss-scale', 'https://github.com/Lightning-AI/pytorch-lightning/issues/19987')

The loops stand in `zeroing`, `windows`, `timing` and `models`. To add one, decorate it with the
rule of the auditor that finds it; `fix` says which lines become which, and the docstring what is
wrong.
"""

from course_utils.zoo import zeroing, windows, timing, models  # noqa: I001 (as a reader meets them)
from course_utils.zoo.registry import ZOO, Specimen

__all__ = ["ZOO", "Specimen", "models", "timing", "windows", "zeroing"]
