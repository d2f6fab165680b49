"""A GradScaler that unscales or updates at the wrong moment, or starts again."""

from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from course_utils.zoo.props import classifier, digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="pytorch/pytorch!36601",
    what="Unscales and updates after each of 4 backward calls: earlier gradients are divided by 1024 again and again.",
    fix={
        "scaler.unscale_(optimizer)": "",
        "scaler.step(optimizer)": "scaler.unscale_(optimizer)\nscaler.step(optimizer)",
        "scaler.update()": "",
        "optimizer.zero_grad()": "optimizer.zero_grad()\nscaler.update()",
    },
)
def unscaled_in_every_micro_batch() -> Losses:
    model, optimizer = classifier()
    scaler = GradScaler("cpu", init_scale=1024.0)
    for i, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        scaler.scale(loss / 4).backward()
        scaler.unscale_(optimizer)
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        yield loss.item()


@Specimen(
    source="conservationtechlab/animl-py#298",
    what="Creates a scaler in each epoch, whose first factor overflows each time: 1 of every 4 updates is skipped.",
    fix={"for _ in range(3):\n    scaler = ": "scaler = ", "float16": "float16\nfor _ in range(3):"},
)
def scaler_made_in_every_epoch() -> Losses:
    model = perceptron(64, 16, 10).float()
    optimizer = SGD(model.parameters(), lr=0.001)
    for _ in range(3):
        scaler = GradScaler("cpu", init_scale=2.0**127)  # too large here, as 2.0**16 may be in float16
        for images, labels in digit_batches(4, size=64):
            loss = cross_entropy(model(images.float()), labels, reduction="sum")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss.item()


@Specimen(
    source="huggingface/accelerate#439",
    what="Updates after each of two optimizers: the factor doubles in between, and the second gradient is halved.",
    fix={"scaler.update()": "", "yield": "scaler.update()\nyield"},
)
def scaler_updated_twice() -> Losses:
    first, second = perceptron(64, 10), perceptron(64, 16, 10)
    optimizers = [SGD(first.parameters(), lr=0.1), SGD(second.parameters(), lr=0.1)]
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for images, labels in digit_batches(8):
        loss = cross_entropy(first(images), labels) + cross_entropy(second(images), labels)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        yield loss.item()
