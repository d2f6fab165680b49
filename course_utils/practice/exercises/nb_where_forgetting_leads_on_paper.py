"""The exercise of where_forgetting_leads on paper: three updates on a bowl, with zeroing and without."""

from course_utils.practice.bench import edits, on_paper


def solution():
    blanks, lr, keeps = {}, 0.75, 3  # the correct loop diverges, the one that forgets does not
    for loop in ("zeroed", "forgotten"):
        w, gradients = 1.0, []
        for update in (1, 2, 3):
            gradients.append(4 * w)  # of L(w) = 2 w^2
            in_grad = sum(gradients[-keeps:]) if loop == "forgotten" else gradients[-1]
            w -= lr * in_grad
            blanks[f"{loop} w{update}"] = w
    blanks["forgotten .grad"] = in_grad
    return {blank: value for blank, value in blanks.items() if "w1" not in blank}


LAST = '    blanks["forgotten .grad"] = in_grad\n'
BOWL_ON_PAPER = on_paper(
    "bowl_on_paper",
    "where_forgetting_leads",
    solution,
    [
        *edits("swapped", 'if loop == "forgotten"', 'if loop == "zeroed"'),
        *edits("uphill", "w -= lr", "w += lr"),
        *edits("no-learning-rate", "lr * in_grad", "in_grad"),
        *edits("wrong-slope", "4 * w)", "2 * w)"),
        *edits("wrong-slope/loss", "4 * w)", "2 * w * w)"),
        *edits("decays", "0.75, 3", "0.75, 2"),
        *edits("own-gradient", LAST, '    blanks["forgotten .grad"] = gradients[-1]\n'),
        *edits("none-is-not-zero", LAST, '    blanks["forgotten .grad"] = None\n'),
    ],
)
