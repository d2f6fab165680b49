"""Micro-batches with unequal numbers of targets count alike."""

from torch.nn.functional import cross_entropy
from torch.optim import SGD

from course_utils.zoo.props import bigram_model, word_windows
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="huggingface/trl#2175",
    what="Batches of 8, 44, 8 and 44 targets count a quarter each: short ones' targets have 5.5 times the weight.",
    fix={
        "for letters,": "tokens = sum((follow != -100).sum() for _, follow in window)\nfor letters,",
        "loss / 4": "loss * (follow != -100).sum() / tokens",
    },
)
def mean_of_means() -> Losses:
    model = bigram_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    for window in word_windows():
        for letters, follow in window:
            loss = cross_entropy(model(letters).flatten(0, 1), follow.flatten(), ignore_index=-100)
            (loss / 4).backward()
            yield loss.item()
        optimizer.step()
        optimizer.zero_grad()


@Specimen(
    source="allenai/open-instruct!1161",
    what="A masked mean over each micro-batch instead of the window: one target counts 1/32 or 1/176, not 1/104.",
    fix={
        "for letters,": "tokens = sum((follow != -100).sum() for _, follow in window)\nfor letters,",
        "mask.sum() / 4": "tokens",
    },
)
def masked_mean_per_micro_batch() -> Losses:
    model = bigram_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    for window in word_windows():
        for letters, follow in window:
            mask = follow != -100
            per_token = cross_entropy(model(letters).transpose(1, 2), follow, reduction="none")
            loss = (per_token * mask).sum() / mask.sum() / 4
            loss.backward()
            yield loss.item()
        optimizer.step()
        optimizer.zero_grad()
