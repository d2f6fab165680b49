"""An optimizer without the gradients, or gradients without an optimizer."""

import copy

from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from course_utils.zoo.props import classifier, digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="huggingface/accelerate#2665",
    what="The optimizer holds the 4 parameters from before the model was wrapped: none of them ever gets a gradient.",
    fix={
        "optimizer = SGD(model.parameters(), lr=0.1)": "",
        "replace the old": "replace the old\noptimizer = SGD(model.parameters(), lr=0.1)",
    },
)
def optimizer_before_wrapping() -> Losses:
    model = perceptron(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    model = copy.deepcopy(model)  # as FSDP does when it flattens: new parameters replace the old
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@Specimen(
    source="openvinotoolkit/nncf!327",
    what="Replaces a parameter after creating the optimizer: 1,024 weights get gradients and are never updated.",
    fix={"weight = nn.Parameter(model[0].weight.detach() / images.std())": "weight.data.div_(images.std())"},
)
def parameter_replaced() -> Losses:
    model, optimizer = classifier()
    for i, (images, labels) in enumerate(2 * digit_batches(6)):
        if i == 0:  # the first layer is scaled by the first batch
            model[0].weight = nn.Parameter(model[0].weight.detach() / images.std())
        loss = cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
