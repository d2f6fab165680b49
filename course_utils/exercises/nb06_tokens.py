"""The exercise of notebook 06: padded sequences, where every token that is left counts the same."""

from torch import nn
from torch.nn.functional import cross_entropy, pad

from course_utils.exercises.judging import Mistake, compare, exercise
from course_utils.exercises.loop import Counter, Loop, losses_of, twice
from course_utils.loops import train_epoch

PLAIN = [
    *(twice((3,) * many, n=n, padded=False) for many, n in ((6, 2), (3, 1), (3, 2), (3, 100))),
    twice((2, 18, 4, 10, 1), n=4, padded=False),
    twice((3,) * 6, n=2, padded=False, old_gradient=True),
]
SIZES = ((16, 2, 4, 6, 1), 2), ((6, 5, 3), 3), ((0, 5, 1, 0, 3), 2), ((2, 0, 4), 3), ((2, 4, 0, 0, 3), 2)
PADDED = [twice(sizes, n=n, padded=True) for sizes, n in SIZES]
LOSSES = "wrong-loss", "Every token of a window counts once. Which losses do you add, and by what do you divide?"


def solution(model, batches, optimizer, n):
    def loss_fn(model, batch):
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    return train_epoch(model, batches, loss_fn, optimizer, n, lambda batch: int((batch[1] != -100).sum()))


def target_of(tokens):
    return tokens // 2 % 5


class Words(Counter):
    """Scores of 5 words for each token; token k is sample k - 1, and 0 is padding."""

    def __init__(self, owner):
        super().__init__(owner)
        self.net = nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 5))

    def forward(self, tokens):
        counted = self.count(tokens - 1).where(tokens > 0, 0.0)
        return self.net(tokens * (3 * tokens + 1) % 5) * (1 + counted)[..., None]


class Reading(Loop):
    def batches(self, samples):
        """Inputs and targets: 0 and -100 where a beginning is masked, or a row is padded."""
        made = []
        for tokens in samples:
            padding = (2, 2 + len(tokens) % 2) if self.case.padded else (0, 0)
            inputs = pad(tokens + 1, padding).view(1 + self.case.padded, -1)
            made.append((inputs, target_of(inputs).where(inputs > 0, -100)))
        return made


def watch(answer, case):
    """Watches the updates, and the losses that the loop returns."""
    loop, losses = Reading(case, Words), []

    def call(batches):
        result = answer(loop.model, batches, loop.optimizer, case.n)
        losses.extend(losses_of(result, "a list of losses, one per update"))

    seen = loop.run(call)
    loop.peak *= case in PLAIN  # a batch whose tokens are all masked may be read, or not
    return seen | {"losses": losses}


@exercise("short windows, padding, masked beginnings, windows without a token: every token counts the same.")
def accumulate_tokens(answer):
    compare(watch, answer, solution, PLAIN, losses=LOSSES)
    try:
        compare(watch, answer, solution, PADDED, losses=LOSSES)
    except Mistake as mistake:
        if mistake.verdict.bug not in ("loss-scale", "token-weights", "wrong-value"):
            raise
        hint = "Which positions does the loss leave out? Divide by what it counts. See Step 4."
        message = f"without padding and masked targets all is right, but {mistake}"
        raise Mistake("padding", message, hint) from None
