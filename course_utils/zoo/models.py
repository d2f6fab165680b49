"""Loops with the wrong parameters, layers or number format, or with graphs that they don't need."""

import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from course_utils.zoo.props import digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen

# An optimizer without the gradients, or gradients without an optimizer.

orphan_parameters = partial(Specimen, "orphan-parameters")


@orphan_parameters("huggingface/accelerate#2665", {"for ": "optimizer = SGD(model.parameters(), lr=0.1)\nfor "})
def optimizer_before_wrapping(model, optimizer) -> Losses:
    """The optimizer holds the 4 parameters from before the model was wrapped: none of them ever
    gets a gradient."""
    model = copy.deepcopy(model)  # as FSDP does when it flattens: new parameters replace the old
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@orphan_parameters("openvinotoolkit/nncf#327", {"weight = nn.Parameter(": "weight.data = ("})
def parameter_replaced(model, optimizer) -> Losses:
    """Replaces a parameter after creating the optimizer: 1,024 weights get gradients and are never
    updated."""
    for i, (images, labels) in enumerate(2 * digit_batches(6)):
        if i == 0:  # the first layer is scaled by the first batch
            model[0].weight = nn.Parameter(model[0].weight.detach() / images.std())
        loss = cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@orphan_parameters("huggingface/transformers#21381", {"=True": "=False"}, level="advice", listed=False)
def checkpointed_after_frozen() -> Losses:
    """Checkpoints a layer whose input needs no gradient: the reentrant form gives it none."""
    model = perceptron(64, 16, 16, 10)
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    for images, labels in digit_batches(6):
        hidden = checkpoint(model[1:4], model[0](images), use_reentrant=True)
        loss = cross_entropy(model[4](hidden), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


# A loss that is computed, logged and left out of the total.

unused_loss = partial(Specimen, "unused-loss", level="advice")


@unused_loss("mims-harvard/TFC-pretraining#37", {"total = loss": "total = (loss + loss_moved) / 2"})
def second_loss_left_out(model, optimizer) -> Losses:
    """Computes a second loss for every batch, and leaves it out of the total: nothing learns from
    it."""
    for images, labels in 2 * digit_batches(8):
        loss = functional.cross_entropy(model(images), labels)
        loss_moved = functional.cross_entropy(model(images.roll(1, dims=1)), labels)
        total = loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        yield loss.item() + loss_moved.item()


# The graphs of several micro-batches are alive at once.

held_graphs = partial(Specimen, "held-graphs", level="advice")


@held_graphs(
    "meta-pytorch/torchtune#1917", {"+= loss": "+= loss.detach()\nloss.backward()", "running_loss.backward()": ""}
)
def one_backward_per_window(model, optimizer) -> Losses:
    """One backward for 4 micro-batches: the gradient is correct, but all 4 sets of activations are
    alive at once."""
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


@held_graphs("BatsResearch/labelmodels#4", {"+= loss": "+= loss.detach()"})
def running_loss_with_its_graphs(model, optimizer) -> Losses:
    """The sum for the log keeps the graph of every batch of the epoch: 8 graphs are alive at its
    end."""
    for _ in range(2):
        running_loss = 0.0
        for images, labels in digit_batches(8):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss
        yield running_loss.item() / 8


@held_graphs("jlamprou/Infini-Attention#3", {", memory]": ", memory.detach()]", "retain_graph=True": ""})
def memory_carried_with_its_graph() -> Losses:
    """The memory carries its graph from segment to segment: each backward goes through all segments
    before."""
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


# BatchNorm layers inside a window.


@Specimen("batchnorm", "giotto-ai/giotto-deep#75", {"nn.BatchNorm1d": "nn.LayerNorm"}, level="advice")
def batchnorm_in_windows() -> Losses:
    """Normalises over the 4 samples of a micro-batch, not the window's 16: no large batch has this
    gradient."""
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


# Gradients added up in a short number format.


@Specimen("low-precision-accumulation", "linkedin/Liger-Kernel#830", {".bfloat16()": ".float()"}, level="advice")
def added_up_in_bfloat16() -> Losses:
    """Adds up 32 gradients in bfloat16, which has 8 binary digits: small addends are rounded away
    from the sum."""
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
