"""The exercises of notebook 02: a loop that may start with old gradients, and a third step."""

from course_utils.exercises.judging import exercise, on_paper
from course_utils.exercises.loop import loops_agree, twice

CLEAN = [twice(sizes) for sizes in ((3,) * 6, (3,) * 4, (4, 2, 1, 3, 2))]


@exercise
def train(answer):
    loops_agree(answer, [*CLEAN, twice((2,) * 4, old_gradient=True)])
    return "with and without old gradients, 2 epochs: every update holds its own batch and nothing else."


@exercise(takes=dict)
def third_step(answer):
    on_paper(
        answer,
        {"fbs": 111, "bszf": 10, "fbszs": 10, "fbzfbs": 100_000, "fbzs": None},
        ("nothing-clears", {"fbs": 100}, "there is no z in it, and neither b nor s clears",
         "Which of the four letters takes something out of `.grad`? Is it in this program?"),
        ("forgets-z", {"bszf": 11, "fbszs": 11, "fbzfbs": 111_111, "fbzs": 111},
         "a z clears all that is in .grad at that moment",
         "Write down `.grad` after every letter. What is left of it after a `z`?"),
        ("counts-rounds", {"fbszs": 100, "fbzfbs": 100},
         "count the steps from the start, and the batches, not the rounds",
         "Write the program out three times in a row, and number its steps: 1, 2, 3."),
        ("backward-before-forward", {"bszf": 100},
         "its b comes before the f of the same round, so look which loss is there",
         "Write down after every letter which batch's loss there is, and what is in `.grad`."),
        ("none-is-not-zero", {"fbzs": 0}, "zero_grad() with its defaults leaves no tensor at all",
         "What does `.grad` hold after `zero_grad()`, if you do not ask for zeros?"),
    )  # fmt: skip
    return "each step reads what has arrived since the last z."
