"""Gradients are zeroed, or overwritten, before any step has used them."""

from torch.nn.functional import cross_entropy

from course_utils.zoo.props import classifier, digit_batches, replayed_classifier
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="bytetriper/RAE#67",
    what="Zeroes before every micro-batch: of four, only the last one's gradient reaches the step, divided by 4.",
    holds={"SGD": [1] * 4},
    fix={"optimizer.zero_grad()": "", "optimizer.step()": "optimizer.step()\noptimizer.zero_grad()"},
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


@Specimen(
    source="starVLA/starVLA#395",
    what="Zeroes just before the window's last backward: three of four micro-batches are thrown away.",
    holds={"SGD": [1] * 4},
    fix={"if sync:\n    optimizer.zero_grad()": "", "optimizer.step()": "optimizer.step()\noptimizer.zero_grad()"},
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


@Specimen(
    source="ultralytics/ultralytics!11217",
    what="Zeroes in the middle of a window: the last 2 of 10 micro-batches are lost; the next update holds 2, not 4.",
    holds={"SGD": [4, 4, 2, 4, 4]},
    fix={"for epoch in range(2):\n    optimizer.zero_grad()": "for epoch in range(2):"},
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


@Specimen(
    source="WalkingMeatAxolotl/AnimaLoraStudio!486",
    what="A loss that is NaN zeroes its window: two good micro-batches are lost; the update holds the fourth alone.",
    holds={"SGD": [4, 1, 4, 4]},
    fix={
        "for i,": "held = 0\nfor i,",
        "optimizer.zero_grad()\ncontinue": "continue",
        "(loss / 4).backward()": "(loss / 4).backward()\nheld += 1",
        "(i + 1)": "held",
    },
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


@Specimen(
    source="pytorch/pytorch#181723",
    what="Every backward writes to one buffer, which .grad adopts: an update is half of its window's last gradient.",
    fix={
        "for _ in": "for p in model.parameters():\n    p.grad = p.new_zeros(p.shape)\nfor _ in",
        "zero_grad()": "zero_grad(set_to_none=False)",
    },
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
