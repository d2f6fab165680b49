"""Loops that clip, unscale, or step a scaler or a schedule at the wrong moment."""

from functools import partial

from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.optim.lr_scheduler import LinearLR, PolynomialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from course_utils.zoo.props import classifier, digit_batches, fast_classifier, perceptron
from course_utils.zoo.registry import Losses, Specimen

# Gradients are clipped at the wrong moment.

clip_timing = partial(Specimen, "clip-timing", props=fast_classifier)
CLIP = "clip_grad_norm_(model.parameters(), max_norm=0.1)"
RIGHT_BEFORE_THE_STEP = {CLIP: "", "optimizer.step()": f"{CLIP}\noptimizer.step()"}


@clip_timing("huggingface/transformers#986", RIGHT_BEFORE_THE_STEP)
def clipped_in_every_micro_batch(model, optimizer) -> Losses:
    """Clips after each of 4 backward calls: the first gradient is scaled down up to 4 times, the
    last one once."""
    for step, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@clip_timing("simchowitzlabpublic/nano-world-model#22", RIGHT_BEFORE_THE_STEP)
def clipped_before_backward(model, optimizer) -> Losses:
    """Clips before backward, when there is no gradient: the limit of 0.1 is never kept."""
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        loss.backward()
        optimizer.step()
        yield loss.item()


@clip_timing("jongwook/onsets-and-frames#24", RIGHT_BEFORE_THE_STEP)
def clipped_after_the_step(model, optimizer) -> Losses:
    """Clips after the step, when the gradient has been used: the limit of 0.1 is never kept."""
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        yield loss.item()


@clip_timing("pytorch/pytorch#148259", {"model.parameters()": "[*model.parameters()]"}, level="advice", listed=False)
def clipped_once() -> Losses:
    """Keeps a generator of parameters, which the first clip uses up: the other 11 clip nothing."""
    model, optimizer = classifier(lr=0.5)
    parameters = model.parameters()
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(parameters, max_norm=0.1)
        optimizer.step()
        yield loss.item()


@clip_timing("milesial/Pytorch-UNet#470", {"clip_grad_norm_(": "scaler.unscale_(optimizer)\nclip_grad_norm_("})
def clipped_before_unscale(model, optimizer) -> Losses:
    """Clips gradients that still carry the scaler's factor of 1024: after unscaling their norm is
    0.1 / 1024."""
    scaler = GradScaler("cpu", init_scale=1024.0)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()


# A GradScaler that unscales or updates at the wrong moment, or starts again.

scaler_timing = partial(Specimen, "scaler-timing")


@scaler_timing("pytorch/pytorch#36601", {"scaler.unscale_(optimizer)": "", "scaler.update()": "    scaler.update()"})
def unscaled_in_every_micro_batch(model, optimizer) -> Losses:
    """Unscales and updates after each of 4 backward calls: earlier gradients are divided by 1024
    again and again."""
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


@scaler_timing(
    "conservationtechlab/animl-py#298",
    {"for _ in range(3):\n    scaler = ": "scaler = ", "float16": "float16\nfor _ in range(3):"},
)
def scaler_made_in_every_epoch() -> Losses:
    """Creates a scaler in each epoch, whose first factor overflows each time: 1 of every 4 updates
    is skipped."""
    model = perceptron(64, 16, 10).float()
    optimizer = SGD(model.parameters(), lr=0.001)
    for _ in range(3):
        scaler = GradScaler("cpu", init_scale=2.0**127)  # too large, as 2.0**16 may be in float16
        for images, labels in digit_batches(4, size=64):
            loss = cross_entropy(model(images.float()), labels, reduction="sum")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss.item()


@scaler_timing("huggingface/accelerate#439", {"scaler.update()": "", "yield": "scaler.update()\nyield"})
def scaler_updated_twice() -> Losses:
    """Updates after each of two optimizers: the factor doubles in between, and the second gradient
    is halved."""
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


# A schedule that counts updates, stepped in every micro-batch. PyTorch warns of these, once.

scheduler_cadence = partial(Specimen, "scheduler-cadence")


@scheduler_cadence("Lightning-AI/pytorch-lightning#1476", {"scheduler.step()": "    scheduler.step()"})
def warmup_in_micro_batches(model, optimizer) -> Losses:
    """Steps the schedule in every micro-batch: a warm-up that should take 4 updates is over after
    the first."""
    scheduler = LinearLR(optimizer, start_factor=0.25, total_iters=4)  # counts updates
    for i, (images, labels) in enumerate(2 * digit_batches(12)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        yield loss.item()


@scheduler_cadence("starVLA/starVLA#210", {"scheduler.step()": "    scheduler.step()"})
def decay_in_micro_batches(model, optimizer) -> Losses:
    """Steps a decay over 6 updates in every micro-batch: the learning rate is 0 from the second
    update on."""
    scheduler = PolynomialLR(optimizer, total_iters=6)  # counts updates
    for step, (images, labels) in enumerate(digit_batches(24)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        yield loss.item()


# An average of the weights, updated in every micro-batch.


@Specimen("", "SWivid/F5-TTS#631", {"ema.update_": "    ema.update_"}, listed=False)
def averaged_in_every_micro_batch(model, optimizer) -> Losses:
    """Updates an average in every micro-batch: its decay acts 4 times per update."""
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for i, (images, labels) in enumerate(digit_batches(8)):
        (cross_entropy(model(images), labels) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        ema.update_parameters(model)
        yield ema.n_averaged.item() / ((i + 1) / 4)
