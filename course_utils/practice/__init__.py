"""What a learner does: predictions, exercises, recall cards, the final test."""

from course_utils.practice.ask import Guess, check, explore, predict, progress, recall

__all__ = ["Guess", "check", "explore", "predict", "progress", "recall"]
