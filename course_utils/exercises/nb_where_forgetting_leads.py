"""The exercise of *where forgetting leads*, on paper: two updates on a bowl whose slope is 4w."""

from course_utils.exercises.judging import exercise, on_paper

BLANKS = "zeroed w2", "zeroed w3", "forgotten w2", "forgotten w3", "forgotten .grad"
TABLE = "Make a table with a row for each update: w, its slope, what is in `.grad`, the step."


@exercise(takes=dict)
def bowl_on_paper(answer):
    on_paper(
        answer,
        dict(zip(BLANKS, (4, -8, 1, 1, 4 + 4 * -2 + 4 * 1), strict=True)),  # the slope is 4, then -8, then 4
        ("swapped", dict(zip(BLANKS, (1, 1, 4, -8, 16), strict=True)), "these are the other loop's numbers", TABLE),
        ("uphill", dict(zip(BLANKS, (16, 64, 19, 91, 96), strict=True)), "a step goes against the gradient", TABLE),
        ("decays", {"forgotten w3": 4, "forgotten .grad": -4}, "the first gradient is still in .grad", TABLE),
        ("none-is-not-zero", {"forgotten .grad": None}, "a sum that happens to be 0 is still a tensor", TABLE),
    )
    return "the correct loop doubles its distance at each update, and the one that forgets is back where it began."
