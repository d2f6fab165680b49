"""Micro-batches with unequal numbers of targets count alike."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from course_utils.zoo.props import bigram_model, word_batches
from course_utils.zoo.registry import Losses, specimen


@specimen(
    rule="token-weights",
    source="huggingface/trl#2175",
    what="Batches of 8, 44, 8 and 44 targets count a quarter each: short ones' targets have 5.5 times the weight.",
    evidence={"counts": [8, 44, 8, 44]},
)
def mean_of_means() -> Losses:
    model = bigram_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for k in range(0, 8, 4):
            window = word_batches()[k : k + 4]
            for letters, follow in window:
                loss = cross_entropy(model(letters).flatten(0, 1), follow.flatten(), ignore_index=-100)
                (loss / 4).backward()
                yield loss.item()
            optimizer.step()
            optimizer.zero_grad()


@mean_of_means.fix
def mean_of_means_fixed() -> Losses:
    model = bigram_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for k in range(0, 8, 4):
            window = word_batches()[k : k + 4]
            tokens = sum((follow != -100).sum() for _, follow in window)
            for letters, follow in window:
                loss = cross_entropy(model(letters).flatten(0, 1), follow.flatten(), ignore_index=-100)
                (loss * (follow != -100).sum() / tokens).backward()
                yield loss.item()
            optimizer.step()
            optimizer.zero_grad()


@specimen(
    rule="token-weights",
    level="undecided",
    source="allenai/open-instruct!1161",
    what="A masked mean over each micro-batch instead of the window: one target counts 1/32 or 1/176, not 1/104.",
)
def masked_mean_per_micro_batch() -> Losses:
    def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
        return (values * mask).sum() / mask.sum()

    model = bigram_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for k in range(0, 8, 4):
            window = word_batches()[k : k + 4]
            for letters, follow in window:
                per_token = cross_entropy(model(letters).transpose(1, 2), follow, reduction="none")
                loss = masked_mean(per_token, follow != -100) / 4
                loss.backward()
                yield loss.item()
            optimizer.step()
            optimizer.zero_grad()


@masked_mean_per_micro_batch.fix
def masked_mean_per_micro_batch_fixed() -> Losses:
    def masked_mean(values: Tensor, mask: Tensor, denominator: Tensor) -> Tensor:
        return (values * mask).sum() / denominator

    model = bigram_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for k in range(0, 8, 4):
            window = word_batches()[k : k + 4]
            tokens = torch.stack([(follow != -100).sum() for _, follow in window]).sum()
            for letters, follow in window:
                per_token = cross_entropy(model(letters).transpose(1, 2), follow, reduction="none")
                loss = masked_mean(per_token, follow != -100, tokens)
                loss.backward()
                yield loss.item()
            optimizer.step()
            optimizer.zero_grad()
