"""Gradient accumulation, exact: windows, the training loop and the evaluation loop."""

from course_utils.loops.epoch import counts, evaluate, items, train_epoch, windows

__all__ = ["counts", "evaluate", "items", "train_epoch", "windows"]
