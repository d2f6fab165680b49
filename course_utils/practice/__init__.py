"""What a learner does: predictions, exercises, recall cards, the final test."""

from course_utils.practice.ask import Guess, check, predict, recall
from course_utils.practice.stepping import step_through

__all__ = ["Guess", "check", "predict", "recall", "step_through"]
