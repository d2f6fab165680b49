"""Losses spelt by hand: each in a correct window, and with three bugs of scale and weight.

A spelling is the mean over a micro-batch's own samples or tokens. What a window makes of it decides
the verdict, which is the same however the mean is written: divided by n it is right if the
micro-batches are equally large; undivided, or divided twice, it is an error of `loss-scale`; and
where micro-batches have unequal counts, a mean of means is an error of `token-weights`. One
spelling hides what it is.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import audit
from runs import found, update

N, LETTERS, LONG = 4, 5, 6  # micro-batches in a window, classes, tokens in a sample
EVEN, UNEVEN = (3, 3, 3, 3), (3, 5, 2, 4)  # samples in the micro-batches of a window


def flat(out, y):
    return out.flatten(0, 1), y.flatten()


def per_token(out, y):
    return F.cross_entropy(out.transpose(1, 2), y, reduction="none")


def log_probs(out, y):
    return out.log_softmax(-1).gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)


def one_hot(y):
    return F.one_hot(y.clamp(min=0), LETTERS).float()


def soft(y):
    return one_hot(y) * 0.9 + 0.02


OVER_ALL = {  # means over all tokens of a micro-batch
    "cross_entropy": lambda out, y: F.cross_entropy(*flat(out, y)),
    "none, sum by numel": lambda out, y: per_token(out, y).sum() / y.numel(),
    "label smoothing, none": lambda out, y: F.cross_entropy(
        *flat(out, y), label_smoothing=0.1, reduction="none"
    ).mean(),
    "probabilities": lambda out, y: F.cross_entropy(out.flatten(0, 1), soft(y).flatten(0, 1)),
    "kl_div": lambda out, y: F.kl_div(out.log_softmax(-1).flatten(0, 1), soft(y).flatten(0, 1), reduction="batchmean"),
    "bce": lambda out, y: F.binary_cross_entropy_with_logits(out, one_hot(y)),
    "focal": lambda out, y: ((1 - (-per_token(out, y)).exp()) ** 2 * per_token(out, y)).mean(),
    "mean of sample means": lambda out, y: per_token(out, y).mean(1).mean(),
    "rmse": lambda out, y: F.mse_loss(out, one_hot(y)).sqrt(),
}


def valid(y):
    return y != -100


OVER_VALID = {  # means over the tokens that are not masked
    "ignore_index": lambda out, y: F.cross_entropy(*flat(out, y)),
    "masked": lambda out, y: (per_token(out, y) * valid(y)).sum() / valid(y).sum(),
    "where": lambda out, y: torch.where(valid(y), -log_probs(out, y), 0.0).sum() / valid(y).sum(),
    "masked_fill": lambda out, y: log_probs(out, y).masked_fill(~valid(y), 0.0).sum() / -valid(y).sum(),
    "masked, sums of samples": lambda out, y: (per_token(out, y) * valid(y)).sum(1).sum() / valid(y).sum(),
}


def micro_batch(size, masked=0):
    """Samples of `LONG` tokens, of which the last `masked` are padding."""
    x, y = torch.randn(size, LONG, 3), torch.randint(LETTERS, (size, LONG))
    y[:, LONG - masked :] = -100
    return x, y


def verdict(*arguments, **how):
    """What the auditor says of `train` with these arguments."""
    with audit() as report:
        train(*arguments, **how)
    return found(report)


def train(loss, masked=False, sizes=EVEN, windows=(N,) * 3):
    """Updates with `loss(out, y, samples, tokens)`, which is also told what the window holds."""
    model = nn.Linear(3, LETTERS)
    optimizer = SGD(model.parameters(), lr=0.01)
    for n in windows:
        window = [micro_batch(size, masked and 1 + size % 3) for size in sizes[:n]]
        samples, tokens = sum(len(y) for _, y in window), sum(valid(y).sum() for _, y in window)
        for x, y in window:
            loss(model(x), y, samples, tokens).backward()
        update(optimizer)


RIGHT, UNDECIDED = [], [("loss-scale", "undecided")]
SCALE, TOKENS = [("loss-scale", "error")], [("token-weights", "error")]
WINDOWS = {  # what a window makes of a mean, the sizes of its micro-batches, and what is to be said
    "divided by n": (lambda mean: mean / N, EVEN, RIGHT),
    "undivided": (lambda mean: mean, EVEN, SCALE),
    "divided twice": (lambda mean: mean / N / N, EVEN, SCALE),
    "mean of means": (lambda mean: mean / N, UNEVEN, TOKENS),
}

VERDICTS = {"rmse": {"undivided": UNDECIDED, "divided twice": UNDECIDED, "mean of means": RIGHT}}


@pytest.mark.parametrize("name", [*OVER_ALL, *OVER_VALID])
def test_a_mean_is_judged_alike_however_it_is_spelled(name):
    mean, masked = (OVER_ALL | OVER_VALID)[name], name in OVER_VALID
    for window, (made, sizes, expected) in WINDOWS.items():
        said = verdict(lambda out, y, *_, made=made: made(mean(out, y)), masked, sizes)
        assert (window, said) == (window, VERDICTS.get(name, {}).get(window, expected))


# Several losses, weights of the script's choice, tails


mean, bce = OVER_ALL["cross_entropy"], OVER_ALL["bce"]


def total(out, y):
    return F.cross_entropy(*flat(out, y), reduction="sum")


def penalty(out):
    return out.square().mean()


TAIL = {"windows": (N, N, 2), "sizes": EVEN}
UNEVEN_SIZES = {"sizes": UNEVEN}
MIXED = {
    "a mean of sums over samples": (lambda out, y, *_: bce(out, y) * out[0].numel() / N, {}, RIGHT),
    "a loss with a weight of 0, divided": (lambda out, y, *_: (3 * mean(out, y) + 0 * penalty(out)) / N, {}, RIGHT),
    "two means of means": (lambda out, y, *_: (mean(out, y) + penalty(out)) / N, UNEVEN_SIZES, TOKENS),
    "a sum": (lambda out, y, *_: total(out, y), {**UNEVEN_SIZES, "masked": True}, RIGHT),
    "a gathered sum": (lambda out, y, samples, n: -(log_probs(out, y) * valid(y)).sum() / n, {"masked": True}, RIGHT),
    "sums, one halved": (
        lambda out, y, *_: F.mse_loss(out, one_hot(y), reduction="sum") / 2 + total(out, y), {"sizes": (2,) * N}, RIGHT,
    ),
    "a tail of tokens": (lambda out, y, samples, tokens: total(out, y) / tokens, TAIL, RIGHT),
    "times the batch, unequal ones": (lambda out, y, *_: mean(out, y) * len(y), UNEVEN_SIZES, RIGHT),
    "a penalty on tokens that count alike": (
        lambda out, y, samples, tokens: total(out, y) / tokens + 0.1 * penalty(out) / N,
        UNEVEN_SIZES,
        [("token-weights", "advice")],  # the penalty is a mean of means, by choice perhaps
    ),
    "an autoencoder, undivided": (
        lambda out, y, *_: (F.mse_loss(out, one_hot(y), reduction="sum") + 0.5 * out.square().sum()) / len(y),
        {},
        SCALE,
    ),
    "padding counts too": (lambda out, y, *_: (per_token(out, y) * valid(y)).mean() / N, {"masked": True}, RIGHT),
    "a tail of sample means": (lambda out, y, *_: OVER_ALL["mean of sample means"](out, y) / N, TAIL, SCALE),
    "a tail of losses with weights": (lambda out, y, *_: (5 * mean(out, y) + 8 * penalty(out)) / N, TAIL, SCALE),
    "a tail where the first window is short as well": (
        lambda out, y, *_: mean(out, y) / N,
        {**TAIL, "windows": (1, N, N, 2)},
        [("irregular-window", "error"), *UNDECIDED],
    ),
    "a tail of its own": (lambda out, y, samples, _: per_token(out, y).sum() / samples, TAIL, RIGHT),
    "samples of one, summed": (lambda out, y, *_: per_token(out, y).mean(1).sum(), {"sizes": (1,) * N}, RIGHT),
    "windows of one, by a constant": (lambda out, y, *_: per_token(out, y).sum() / 1000, {"windows": (1,) * 6}, RIGHT),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_weights_are_choices_and_counts_are_not(name):
    loss, how, expected = MIXED[name]
    assert verdict(loss, **how) == expected
