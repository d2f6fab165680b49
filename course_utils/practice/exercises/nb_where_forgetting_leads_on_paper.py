"""The exercise of where_forgetting_leads on paper: three updates on a bowl, with zeroing and without."""

from collections.abc import Callable

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

LR, SLOPE = 0.75, 4.0  # of L(w) = 2 w^2 from w = 1: the correct loop diverges, the one that forgets does not


def bowl(
    forget: bool, lr: float = LR, slope: Callable[[float], float] = lambda w: SLOPE * w, keeps: int = 3
) -> tuple[list[float], float]:
    """The weight after each of three updates, and what the third step reads.

    Args:
        forget: Whether nothing zeroes.
        lr: The learning rate.
        slope: The gradient at a weight.
        keeps: How many gradients a loop that forgets adds up.
    """
    w, gradients, positions = 1.0, [], []
    for _ in range(3):
        gradients.append(slope(w))
        read = sum(gradients[-keeps:]) if forget else gradients[-1]
        w -= lr * read
        positions.append(w)
    return positions, read


def blanks(zeroed: tuple[list[float], float], forgotten: tuple[list[float], float]) -> dict[str, float]:
    (_, second, third), _ = zeroed
    (_, second_forgotten, third_forgotten), read = forgotten
    return {
        "zeroed w2": second,
        "zeroed w3": third,
        "forgotten .grad": read,
        "forgotten w2": second_forgotten,
        "forgotten w3": third_forgotten,
    }


def both(**changes) -> dict[str, float]:
    return blanks(bowl(False, **changes), bowl(True, **changes))


_WANT = both()
_SLIPS = (
    Slip("swapped", "these are the numbers of the other loop", blanks(bowl(True), bowl(False))),
    Slip("uphill", "a step goes against the gradient", both(lr=-LR)),
    Slip("no-learning-rate", "a step is the learning rate times what is in .grad", both(lr=1.0)),
    Slip("wrong-slope", "this is not the slope of 2 w^2", both(slope=lambda w: 2 * w)),
    Slip("wrong-slope", "this is the loss, and not its slope", both(slope=lambda w: 2 * w * w)),
    Slip("decays", "the first gradient is still in .grad at the third step", blanks(bowl(False), bowl(True, keeps=2))),
    Slip(
        "own-gradient",
        "this is the gradient of the third batch alone",
        {"forgotten .grad": SLOPE * _WANT["forgotten w2"]},
    ),
    Slip("none-is-not-zero", "a sum that happens to be 0 is still a tensor", {"forgotten .grad": None}),
)


@exercise(
    "bowl_on_paper",
    notebook="where_forgetting_leads",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank. The two loops begin at the same place, and their first update is the same.",
        "swapped": "In which of the two loops does the second step also use the first gradient?",
        "uphill": "The slope at 1 is positive. On which side of it is the lowest point?",
        "no-learning-rate": "What does SGD multiply `.grad` by?",
        "wrong-slope": "How fast does 2 w² change where w is 1?",
        "decays": "Which line of a loop that forgets would take the first gradient out of `.grad`?",
        "own-gradient": "Add up what three backward passes brought, with their signs.",
        "none-is-not-zero": "Which call makes a `.grad` None, and does this loop have it?",
        "wrong-value": "Make a table with a row for each update: w, its slope, what is in `.grad`, the step.",
    },
)
def _bowl_on_paper(answer: dict) -> str:
    judge_numbers(answer, _WANT, _SLIPS)
    return "the correct loop doubles its distance at each update, and the one that forgets is back where it began."
