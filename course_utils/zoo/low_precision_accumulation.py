"""Gradients added up in a short number format."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from course_utils.zoo.props import digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    level="advice",
    source="linkedin/Liger-Kernel!830",
    what="Adds up 32 gradients in bfloat16, which has 8 binary digits: small addends are rounded away from the sum.",
    fix={".bfloat16()": ".float()"},
)
def added_up_in_bfloat16() -> Losses:
    model = perceptron(64, 16, 10).bfloat16()
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (images, labels) in enumerate(2 * digit_batches(64, size=2)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(images.float()), labels)
        (loss / 32).backward()
        if (i + 1) % 32 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
