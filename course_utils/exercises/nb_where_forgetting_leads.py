"""The exercise of *where forgetting leads*, on paper: two updates on a bowl whose slope is 4w."""

from course_utils.exercises.judging import on_paper

ZEROED = {"zeroed w2": 4, "zeroed w3": -8}
FORGOTTEN = {"forgotten w2": 1, "forgotten w3": 1, "forgotten .grad": 4 + 4 * -2 + 4 * 1}  # the slope is 4, -8, 4
on_paper(
    "bowl_on_paper",
    ZEROED | FORGOTTEN,
    "the correct loop doubles its distance at each update, and the one that forgets is back where it began.",
    "Make a table with a row for each update: w, its slope, what is in `.grad`, the step.",
    ("decays", {"forgotten w3": 4, "forgotten .grad": -4}, "the first gradient is still in .grad"),
)
