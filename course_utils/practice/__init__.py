"""What a learner does: predictions, exercises, recall cards, the final test."""

from course_utils.practice.ask import Guess, check, explore, predict, progress, recall
from course_utils.practice.stepping import step_through

__all__ = ["Guess", "check", "explore", "predict", "progress", "recall", "step_through"]
