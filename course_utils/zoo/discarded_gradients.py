"""Gradients are zeroed, or overwritten, before any step has used them."""

import torch
from torch.nn.functional import cross_entropy

from course_utils.zoo.props import classifier, digit_batches, replayed_classifier
from course_utils.zoo.registry import Losses, specimen


@specimen(
    source="bytetriper/RAE#67",
    what="Zeroes before every micro-batch: of four, only the last one's gradient reaches the step, divided by 4.",
    holds={"SGD": [1] * 4},
    evidence={"backward_calls": 16, "discarded": 12, "first": 1},
)
def zeroed_in_every_micro_batch() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        for i, (images, labels) in enumerate(digit_batches(8)):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
            yield loss.item()


@specimen(
    source="starVLA/starVLA#395",
    what="Zeroes just before the window's last backward: three of four micro-batches are thrown away.",
    holds={"SGD": [1] * 4},
)
def zeroed_in_the_last_micro_batch() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        for i, (images, labels) in enumerate(digit_batches(8)):
            sync = (i + 1) % 4 == 0  # in accelerate, zero_grad() and step() act only where this is true
            if sync:
                optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if sync:
                optimizer.step()
            yield loss.item()


@zeroed_in_every_micro_batch.fix
@zeroed_in_the_last_micro_batch.fix
def zeroed_after_the_step() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        for i, (images, labels) in enumerate(digit_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            yield loss.item()


@specimen(
    source="ultralytics/ultralytics!11217",
    what="Zeroes in the middle of a window: the last 2 of 10 micro-batches are lost; the next update holds 2, not 4.",
    holds={"SGD": [4, 4, 2, 4, 4]},
)
def zeroed_at_the_epochs_start() -> Losses:
    model, optimizer = classifier()
    last_step = -1
    for epoch in range(2):
        optimizer.zero_grad()
        for i, (images, labels) in enumerate(digit_batches(10)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if epoch * 10 + i - last_step >= 4:
                optimizer.step()
                optimizer.zero_grad()
                last_step = epoch * 10 + i
            yield loss.item()


@zeroed_at_the_epochs_start.fix
def zeroed_at_the_epochs_start_fixed() -> Losses:
    model, optimizer = classifier()
    last_step = -1
    for epoch in range(2):
        for i, (images, labels) in enumerate(digit_batches(10)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if epoch * 10 + i - last_step >= 4:
                optimizer.step()
                optimizer.zero_grad()
                last_step = epoch * 10 + i
            yield loss.item()


@specimen(
    source="WalkingMeatAxolotl/AnimaLoraStudio!486",
    what="A loss that is NaN zeroes its window: two good micro-batches are lost; the update holds the fourth alone.",
    holds={"SGD": [4, 1, 4, 4]},
    leftover=1,
    evidence={"backward_calls": 16, "discarded": 2},
)
def zeroed_by_one_loss() -> Losses:
    model, optimizer = classifier()
    for i, (images, labels) in enumerate(digit_batches(17, damaged=6)):
        loss = cross_entropy(model(images), labels)
        if not loss.isfinite():
            optimizer.zero_grad()
            continue
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@zeroed_by_one_loss.fix
def zeroed_by_one_loss_fixed() -> Losses:
    model, optimizer = classifier()
    held = 0
    for images, labels in digit_batches(17, damaged=6):
        loss = cross_entropy(model(images), labels)
        if not loss.isfinite():
            continue
        (loss / 4).backward()
        held += 1
        if held % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@specimen(
    source="pytorch/pytorch#181723",
    what="Every backward writes to one buffer, which .grad adopts: an update is half of its window's last gradient.",
    evidence={"first": 2, "overwritten": 4},
)
def gradients_in_one_buffer() -> Losses:
    model, optimizer = replayed_classifier()
    for _ in range(2):
        for i, (images, labels) in enumerate(digit_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            yield loss.item()


@gradients_in_one_buffer.fix
def gradients_in_one_buffer_fixed() -> Losses:
    model, optimizer = replayed_classifier()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(2):
        for i, (images, labels) in enumerate(digit_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            yield loss.item()
