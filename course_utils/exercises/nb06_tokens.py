"""The exercises of notebook 06: padded sequences, where every token that is left counts the same."""

from torch import nn
from torch.nn.functional import cross_entropy, pad

from course_utils.exercises.judging import compare, exercise
from course_utils.exercises.loop import Counter, Loop, twice
from course_utils.loops import train_epoch

TOKENS = [
    *(twice((3,) * many, n=n, padded=False) for many, n in ((6, 2), (3, 1), (3, 2), (3, 100))),
    twice((2, 18, 4, 10, 1), n=4, padded=False),
    *(twice(sizes, n=n, padded=True) for sizes, n in (((16, 2, 4, 6, 1), 2), ((6, 5, 3), 3))),
    twice((3,) * 6, n=2, padded=False, old_gradient=True),
]
NONE = [twice(sizes, n=n, padded=True) for sizes, n in (((2, 0, 4), 3), ((0, 5, 1, 0, 3), 2), ((2, 4, 0, 0, 3), 2))]


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

    def loss_fn(self, model, batch):
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def tokens(batch):
    return int((batch[1] != -100).sum())


def watch(answer, case):
    loop = Reading(case, Words)
    return loop.run(lambda batches: answer(loop.model, batches, loop.loss_fn, loop.optimizer, case.n, tokens))


@exercise("equal and unequal micro-batches, short windows, padding: every token of a window counts the same.")
def weighted_loop(answer):
    compare(watch, answer, train_epoch, TOKENS)


@exercise("micro-batches and whole windows without a token are left out, and all others count by their tokens.")
def without_tokens(answer):
    compare(watch, answer, train_epoch, TOKENS + NONE)
