"""Exact gradient accumulation: windows, the gradient of a window, training and evaluation."""

from course_utils.loops.epoch import Update, evaluate, train_epoch
from course_utils.loops.fit import MicroBatchFinder
from course_utils.loops.window import backward_window, items, windows

__all__ = ["MicroBatchFinder", "Update", "backward_window", "evaluate", "items", "train_epoch", "windows"]
