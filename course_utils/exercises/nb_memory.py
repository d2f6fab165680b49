"""The exercise of *memory*, on paper: what is left of 1000 MB, over what one sample adds."""

from course_utils.exercises.judging import on_paper

on_paper(
    "fits_on_paper",
    {"plain": 400 // 40, "checkpointed": 400 // 20, "sgd": 700 // 40, "adapters": 810 // 38, "n": 7},
    "600 MB stay for AdamW, 300 for SGD, 190 with adapters; the rest is divided by what one sample adds.",
    "What stays between two forward passes, gradients and averages included? Divide the rest by what one sample adds.",
)
