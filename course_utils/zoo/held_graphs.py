"""The graphs of several micro-batches are alive at once."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from course_utils.zoo.props import classifier, digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    level="advice",
    source="meta-pytorch/torchtune!1917",
    what="One backward for 4 micro-batches: the gradient is correct, but all 4 sets of activations are alive at once.",
    holds={"SGD": [1] * 4},
    fix={"running_loss += loss": "loss.backward()\nrunning_loss += loss.detach()", "running_loss.backward()": ""},
)
def one_backward_per_window() -> Losses:
    model, optimizer = classifier()
    running_loss = 0
    for idx, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels) / 4
        running_loss += loss
        if (idx + 1) % 4 == 0:
            running_loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield running_loss.item()
            running_loss = 0


@Specimen(
    level="advice",
    source="BatsResearch/labelmodels#4",
    what="The sum for the log keeps the graph of every batch of the epoch: 8 graphs are alive at its end.",
    fix={"+= loss": "+= loss.item()", "running_loss.item()": "running_loss"},
)
def running_loss_with_its_graphs() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        running_loss = 0.0
        for images, labels in digit_batches(8):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss
        yield running_loss.item() / 8


@Specimen(
    level="advice",
    source="jlamprou/Infini-Attention#3",
    what="The memory carries its graph from segment to segment: each backward goes through all segments before.",
    fix={"[images, memory]": "[images, memory.detach()]", "retain_graph=True": ""},
)
def memory_carried_with_its_graph() -> Losses:
    model = perceptron(80, 16)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        memory = torch.zeros(8, 16, dtype=torch.float64)
        for images, labels in digit_batches(4):
            memory = model(torch.cat([images, memory], dim=1)).tanh()
            loss = cross_entropy(memory[:, :10], labels)
            (loss / 4).backward(retain_graph=True)
            yield loss.item()
        optimizer.step()
        optimizer.zero_grad()
