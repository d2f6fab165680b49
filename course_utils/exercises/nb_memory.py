"""The exercise of *memory*, on paper: what is left of 1000 MB, over what one sample adds."""

from course_utils.exercises.judging import on_paper

on_paper(
    "fits_on_paper",
    {"plain": 400 // 40, "checkpointed": 400 // 20, "sgd": 700 // 40, "adapters": 810 // 38, "n": 7},
    "600 MB stay for AdamW, 300 for SGD, 190 with adapters; the rest is divided by what one sample adds.",
    "Write down what stays from one forward pass to the next, subtract it, and divide by what one sample adds.",
    ("forgets-the-state", {"plain": 17, "checkpointed": 35, "n": 4}, "AdamW keeps two averages"),
    ("forgets-gradients", {"plain": 13, "checkpointed": 27, "sgd": 21, "n": 5}, "gradients stay, too"),
)
