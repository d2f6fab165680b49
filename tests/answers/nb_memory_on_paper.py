"""Answers to "fits_on_paper": how many samples fit, and what each slip leads to."""

import torch

from answers import right, wrong


def on_paper(plain=10, checkpointed=20, sgd=17, adapters=21, n=7):
    return {"plain": plain, "checkpointed": checkpointed, "sgd": sgd, "adapters": adapters, "n": n}


for correct in (
    on_paper(),
    on_paper(10.0, "20", torch.tensor(17), 810 // 38, 64 // 10 + 1),
    dict(reversed(on_paper().items())),
):
    right("fits_on_paper")(correct)

for slip, bug, says in (
    (on_paper(17, 35, 17, 21, 4), "forgets-the-state", "two numbers"),
    (on_paper(13, 27, 21, 21, 5), "forgets-gradients", "full set"),
    (on_paper(25, 50, 25, 26, 3), "activations-alone", "share the card"),
    (on_paper(sgd=10), "keeps-a-state", "keeps nothing"),
    (on_paper(sgd=13), "one-state-for-sgd", "momentum"),
    (on_paper(checkpointed=80), "forgets-the-block", "come back"),
    (on_paper(adapters=9), "everything-trains", "no gradient"),
    (on_paper(adapters=25), "frozen-weights-vanish", "still on the card"),
    (on_paper(sgd=18, adapters=22, n=6), "rounds-the-wrong-way", ""),
    (on_paper(sgd=17.5, adapters=21.3158, n=6.4), "not-rounded", "come whole"),
    (on_paper(adapters=21.9), "wrong-value", "adapters = 21.9"),
    (on_paper(plain=...), "unfinished", "plain"),
    (on_paper(..., ..., ..., ..., ...), "not-attempted", ""),
    ({"adam": 10}, "wrong-type", "no blank 'adam'"),
):
    wrong("fits_on_paper", bug, says=says)(slip)
