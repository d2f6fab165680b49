"""The exercises of notebook 02: a loop that may start with old gradients, and a third step."""

from course_utils.exercises.judging import exercise, on_paper
from course_utils.exercises.loop import loops_agree, twice

CLEAN = [twice(sizes) for sizes in ((3,) * 6, (3,) * 4, (4, 2, 1, 3, 2))]


@exercise("with and without old gradients, 2 epochs: every update holds its own batch and nothing else.")
def train(answer):
    loops_agree(answer, [*CLEAN, twice((2,) * 4, old_gradient=True)])


on_paper(
    "third_step",
    {"fbs": 111, "bszf": 10, "fbszs": 10, "fbzfbs": 100_000, "fbzs": None},
    "each step reads what has arrived since the last z.",
    "Write the program out three times in a row, number its steps, and write down `.grad` after every letter.",
    ("nothing-clears", {"fbs": 100}, "there is no z in it, and neither b nor s clears"),
    ("forgets-z", {"bszf": 11, "fbszs": 11, "fbzfbs": 111_111, "fbzs": 111},
     "a z clears all that is in .grad at that moment"),
    ("counts-steps", {"fbs": 11, "bszf": 1, "fbszs": None, "fbzfbs": 1000}, "that's what the second step reads"),
    ("counts-rounds", {"fbszs": 100, "fbzfbs": 100}, "count the steps from the start, and the batches, not the rounds"),
    ("backward-before-forward", {"bszf": 100}, "its b comes before the f of the same round, and uses an older loss"),
    ("none-is-not-zero", {"fbzs": 0}, "zero_grad() with its defaults leaves no tensor at all"),
)  # fmt: skip
