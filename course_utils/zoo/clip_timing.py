"""Gradients are clipped at the wrong moment."""

from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from course_utils.zoo.props import classifier, digit_batches
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="huggingface/transformers#986",
    what="Clips after each of 4 backward calls: the first gradient is scaled down up to 4 times, the last one once.",
    fix={
        "clip_grad_norm_(model.parameters(), max_norm=0.1)": "",
        "optimizer.step()": "clip_grad_norm_(model.parameters(), max_norm=0.1)\noptimizer.step()",
    },
)
def clipped_in_every_micro_batch() -> Losses:
    model, optimizer = classifier(lr=0.5)
    for step, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@Specimen(
    source="simchowitzlabpublic/nano-world-model!22",
    what="Clips before backward, when there is no gradient: the limit of 0.1 is never kept.",
    fix={
        "clip_grad_norm_(model.parameters(), max_norm=0.1)": "",
        "loss.backward()": "loss.backward()\nclip_grad_norm_(model.parameters(), max_norm=0.1)",
    },
)
def clipped_before_backward() -> Losses:
    model, optimizer = classifier(lr=0.5)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        loss.backward()
        optimizer.step()
        yield loss.item()


@Specimen(
    source="jongwook/onsets-and-frames#24",
    what="Clips after the step, when the gradient has been used: the limit of 0.1 is never kept.",
    fix={
        "clip_grad_norm_(model.parameters(), max_norm=0.1)": "",
        "optimizer.step()": "clip_grad_norm_(model.parameters(), max_norm=0.1)\noptimizer.step()",
    },
)
def clipped_after_the_step() -> Losses:
    model, optimizer = classifier(lr=0.5)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        yield loss.item()


@Specimen(
    source="milesial/Pytorch-UNet!470",
    what="Clips gradients that still carry the scaler's factor of 1024: after unscaling their norm is 0.1 / 1024.",
    fix={"clip_grad_norm_(": "scaler.unscale_(optimizer)\nclip_grad_norm_("},
)
def clipped_before_unscale() -> Losses:
    model, optimizer = classifier(lr=0.5)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()
