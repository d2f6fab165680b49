"""BatchNorm layers inside a window."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from course_utils.zoo.props import digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    level="advice",
    source="giotto-ai/giotto-deep#75",
    what="Normalises over the 4 samples of a micro-batch, not the window's 16: no large batch has this gradient.",
    fix={"nn.BatchNorm1d": "nn.LayerNorm"},
)
def batchnorm_in_windows() -> Losses:
    model = perceptron(64, 16, 10)
    model.insert(1, nn.BatchNorm1d(16, dtype=torch.float64))
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (images, labels) in enumerate(2 * digit_batches(16, size=4)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
