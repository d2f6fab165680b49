"""A step without any gradient, or with zeros alone."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from course_utils.zoo.props import classifier, digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="sacmehta/EdgeNets#14",
    what="Zeroes between backward and step: none of the 12 updates has a gradient, and no weight ever moves.",
    holds={"SGD": [0] * 12},
    fix={"loss.backward()\noptimizer.zero_grad()": "optimizer.zero_grad()\nloss.backward()"},
)
def zeroed_before_the_step() -> Losses:
    model, optimizer = classifier()
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        yield loss.item()


@Specimen(
    source="lightseekorg/TorchSpec!33",
    what="Every third batch has no target: its gradient is 0, yet momentum still moves the weights at its step.",
    fix={"valid = (labels != -100).sum()": "valid = (labels != -100).sum()\nif valid == 0:\n    continue"},
)
def step_without_a_target() -> Losses:
    model = perceptron(64, 16, 10)
    optimizer = AdamW(model.parameters(), lr=0.01)
    for i, (images, labels) in enumerate(digit_batches(12)):
        if i % 3 == 2:
            labels = torch.full_like(labels, -100)  # a batch whose answers were all cut off
        valid = (labels != -100).sum()
        loss = cross_entropy(model(images), labels, reduction="sum") / valid.clamp(min=1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
