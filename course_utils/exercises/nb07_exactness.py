"""The exercises of notebook 07: a test of exactness, and what it has to switch off."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.exercises.judging import Mistake, agree, exercise, returned, same, truth, wrong_type
from course_utils.my_loop import of_the_course, train_of

EQUAL, RAGGED = (4, 4, 4, 4), (7, 2, 4, 1)
FACTOR, STEP = "(weight(batch) / total)", "optimizer.step()"
ZEROES = ("optimizer.zero_grad()\n    for", "for")  # the course's loop zeroes before its first window, too
BIAS, ROUNDED = (STEP, f"model[-1].bias.grad *= 2; {STEP}"), (FACTOR, "round(weight(batch) / total, 8)")
CASES = (  # the bug of a test that is wrong on it, what it is, an edit of the loop, samples, a layer, the loss's factor
    ("accuses-exact", "a correct loop, on equal micro-batches", (), EQUAL, nn.Tanh(), 1),
    ("accuses-late-zeroing", "a correct loop that zeroes after its steps only", ZEROES, EQUAL, nn.Tanh(), 1),
    ("accuses-exact", "a correct loop, on unequal micro-batches and a huge loss", (), RAGGED, nn.Tanh(), 1e9),
    ("accuses-frozen", "a correct loop, on a model with a frozen BatchNorm", (), EQUAL, nn.BatchNorm1d(5).eval(), 1),
    ("misses-wrong-loops", "a loop that divides unequal micro-batches by N", (FACTOR, "1 / n"), RAGGED, nn.Tanh(), 1),
    ("misses-wrong-loops", "a loop that turns the gradient's sign around", (FACTOR, "-1 / n"), EQUAL, nn.Tanh(), 1),
    ("misses-wrong-loops", "a loop that counts one bias twice", BIAS, EQUAL, nn.Tanh(), 1),
    ("misses-wrong-losses", "a root of a mean", (), EQUAL, nn.Tanh(), 1),
    ("misses-batchnorm", "a model with BatchNorm in training mode", (), EQUAL, nn.BatchNorm1d(5), 1),
    ("misses-small-errors", "a loop that rounds its factors to 8 digits", ROUNDED, RAGGED, nn.Tanh(), 1),
    ("misses-tiny-gradients", "a tiny loss and a loop that does not divide", (FACTOR, "1"), EQUAL, nn.Tanh(), 1e-13),
)
HINTS = {
    "accuses-exact": "Are both gradients taken at the same weights? Is one window one update, at learning rate 1? Is "
    "the difference compared with the gradient's size?",
    "accuses-late-zeroing": "What lies in `.grad` when your test calls `train`?",
    "accuses-frozen": "Which layers are in another mode now than when the model arrived?",
    "misses-wrong-loops": "Is the large batch's gradient made without the loop? Is every entry compared?",
    "misses-wrong-losses": "The large batch is one call of `loss_fn`, with the samples of all micro-batches joined.",
    "misses-batchnorm": "In which mode is the model trained, and in which is it tested?",
}


@exercise("your test finds all 7 that are not exact, and passes all 4 that are.")
def is_exact(answer):
    for bug, what, edit, sizes, layer, factor in CASES:
        torch.default_generator.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 5), deepcopy(layer), nn.Tanh(), nn.Linear(5, 4)).double()
        x, y = torch.randn(sum(sizes), 3), torch.randint(4, (sum(sizes),))
        loop = of_the_course("06")
        train = train_of(loop._replace(text=loop.text.replace(*edit)) if edit else loop)

        def loss_fn(model, batch, factor=factor, power=0.5 if bug == "misses-wrong-losses" else 1.0):
            return factor * cross_entropy(model(batch[0]), batch[1]) ** power

        window = list(zip(x.split(sizes), y.split(sizes), strict=True))
        said = truth(answer(train, model, window, loss_fn, lambda batch: len(batch[1])))
        hint = HINTS.get(bug, "By what is the norm of the difference divided, and how small must the quotient be?")
        same(what, said, bug.startswith("accuses"), bug, hint)


@exercise("nothing draws random numbers any more, and every BatchNorm is in the mode in which it came.")
def quiet(answer):
    models = {  # made here, because their weights draw random numbers
        "dropout inside another layer": (nn.Sequential(nn.Tanh(), nn.Sequential(nn.Dropout(0.5))),),
        "BatchNorm in training mode, and dropout": (nn.BatchNorm1d(5), nn.Dropout(0.5)),
        "a frozen BatchNorm, and dropout": (nn.BatchNorm1d(5).eval(), nn.Dropout(0.5)),
        "Dropout1d and AlphaDropout": (nn.Dropout1d(0.5), nn.AlphaDropout(0.5)),
        "attention with dropout, in a TransformerEncoderLayer": (nn.TransformerEncoderLayer(5, 1, 8, 0.5),),
        "an LSTM of two layers, with dropout between them": (nn.LSTM(5, 5, 2, dropout=0.5),),
        "RReLU": (nn.RReLU(),),
    }
    for what, layers in models.items():
        model, x = nn.Sequential(nn.Linear(3, 5), *layers).double(), torch.randn(64, 3)
        right = deepcopy(model)
        for layer in right.modules():
            layer.training &= isinstance(layer, nn.BatchNorm1d)
        found = returned(answer(model), "the model")
        if not isinstance(found, nn.Module):
            raise wrong_type(f"expected the model, got {type(found).__name__}.")
        if not agree(found(x), found(x), 0.0, 0.0):
            hint = "Which layers draw random numbers? `model.modules()` has all of them, also those inside of others."
            raise Mistake("still-random", f"{what}: two forward passes differ.", hint)
        if not agree(found(x), right(x)):
            hint = "In which mode was each layer when the model arrived? Only what draws random numbers may change."
            raise Mistake("other-mode", f"{what}: the model computes something else than it should.", hint)
