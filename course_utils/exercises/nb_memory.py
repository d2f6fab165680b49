"""The exercise of *memory*, on paper: what is left of 1000 MB, over what one sample adds."""

from course_utils.exercises.judging import exercise, on_paper

SUBTRACT = "Write down what stays from one forward pass to the next, subtract it, and divide by what one sample adds."
NO_STATE = {"plain": 17, "checkpointed": 35, "n": 4}
NO_GRADIENTS = {"plain": 13, "checkpointed": 27, "sgd": 21, "n": 5}
ALONE = {"plain": 25, "checkpointed": 50, "sgd": 25, "adapters": 26, "n": 3}


@exercise(takes=dict)
def fits_on_paper(answer):
    on_paper(
        answer,
        {"plain": 400 // 40, "checkpointed": 400 // 20, "sgd": 700 // 40, "adapters": 810 // 38, "n": 7},
        ("forgets-the-state", NO_STATE, "AdamW keeps two numbers for each trained weight", SUBTRACT),
        ("forgets-gradients", NO_GRADIENTS, "a window holds a full set of gradients", SUBTRACT),
        ("activations-alone", ALONE, "the activations share the card with what stays", SUBTRACT),
        ("keeps-a-state", {"sgd": 10}, "SGD without momentum keeps nothing between updates", SUBTRACT),
        ("forgets-the-block", {"checkpointed": 80}, "a block's activations come back in its backward pass", SUBTRACT),
        ("everything-trains", {"adapters": 9}, "frozen weights have no gradient and no average", SUBTRACT),
        ("not-rounded", {"sgd": 17.5, "adapters": 810 / 38, "n": 6.4}, "samples come whole", SUBTRACT),
    )
    return "600 MB stay for AdamW, 300 for SGD, 190 with adapters; the rest is divided by what one sample adds."
