"""Loops that zero too late, too early, or not what they should: which gradients a step uses."""

from functools import partial

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from course_utils.zoo.props import as_fake, as_real, classifier, digit_batches, gan, perceptron, point_batches, replayed
from course_utils.zoo.registry import Losses, Specimen

# Gradients of an earlier update are still there when the next window begins.

stale_gradients = partial(Specimen, "stale-gradients")


@stale_gradients("wenet-e2e/wekws#72", {"loss.backward()": "optimizer.zero_grad()\nloss.backward()"})
def never_zeroed(model, optimizer) -> Losses:
    """No line zeroes: update k uses the sum of the gradients of all k batches so far."""
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        yield loss.item()


@stale_gradients("pytorch/pytorch#47175", {"loss.backward()": "optimizer.zero_grad()\nloss.backward()"})
def zeroed_once_an_epoch(model, optimizer) -> Losses:
    """Zeroes at the start of an epoch instead of a batch: its six updates use 1, 2, 3, 4, 5 and 6
    batches."""
    for _ in range(2):
        optimizer.zero_grad()
        for images, labels in digit_batches(6):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            yield loss.item()


@stale_gradients("IDEA-Research/DN-DETR#19", {"loss.backward()": "optimizer.zero_grad()\nloss.backward()"})
def clipped_running_sum() -> Losses:
    """No line zeroes, and clipping hides it: each step clips the last clipped sum plus a new
    gradient to 0.1."""
    model, optimizer = classifier(lr=0.5)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()
        yield loss.item()


@stale_gradients("ajbrock/BigGAN-PyTorch#25", {"loss_d.backward()": "optimizer_d.zero_grad()\nloss_d.backward()"})
def critic_zeroed_once() -> Losses:
    """Zeroes before the critic's two steps but not between them: the second step uses the first
    gradient again."""
    generator, critic, optimizer_g, optimizer_d = gan()
    for k in range(6):
        optimizer_d.zero_grad()
        critic.requires_grad_(True)
        for real, noise in point_batches(12)[2 * k : 2 * k + 2]:  # two for one of the generator
            loss_d = as_real(critic(real)) + as_fake(critic(generator(noise).detach()))
            loss_d.backward()
            optimizer_d.step()
            yield loss_d.item()
        critic.requires_grad_(False)
        optimizer_g.zero_grad()
        as_real(critic(generator(noise))).backward()
        optimizer_g.step()


@stale_gradients("MorvanZhou/pytorch-A3C#21", {"optimizer.zero_grad()": "local.zero_grad()"})
def local_model_never_zeroed(shared, optimizer) -> Losses:
    """Zeroes the shared model and not the local one, which hands it its gradients: update k uses
    the sum of k."""
    local = perceptron(64, 16, 10)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(local(images), labels)
        optimizer.zero_grad()
        loss.backward()
        for own, common in zip(local.parameters(), shared.parameters(), strict=True):
            common._grad = own.grad
        optimizer.step()
        local.load_state_dict(shared.state_dict())
        yield loss.item()


@stale_gradients("greebear/pytorch-learning#1", {"p.grad.data": "p.grad.data\np.grad.data.zero_()"})
def update_by_hand_never_zeroed() -> Losses:
    """Writes the update by hand, and zeroes nothing: each subtracts the sum of all gradients so
    far."""
    model = perceptron(64, 16, 10)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad.data
        yield loss.item()


# Gradients are zeroed, or overwritten, before any step has used them.

discarded_gradients = partial(Specimen, "discarded-gradients")
HELD_COUNTED = {"for i,": "held = 0\nfor i,", ".backward()": ".backward()\nheld += 1", "(i + 1)": "held"}


@discarded_gradients("bytetriper/RAE#67", {"optimizer.zero_grad()": "if i % 4 == 0:\n    optimizer.zero_grad()"})
def zeroed_in_every_micro_batch(model, optimizer) -> Losses:
    """Zeroes before every micro-batch: of four, only the last one's gradient reaches the step,
    divided by 4."""
    for i, (images, labels) in enumerate(2 * digit_batches(8)):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
        yield loss.item()


@discarded_gradients(
    "starVLA/starVLA#395", {"if sync:\n    optimizer.zero_grad()": "if i % 4 == 0:\n    optimizer.zero_grad()"}
)
def zeroed_in_the_last_micro_batch(model, optimizer) -> Losses:
    """Zeroes just before the window's last backward: three of four micro-batches are thrown
    away."""
    for i, (images, labels) in enumerate(2 * digit_batches(8)):
        sync = (i + 1) % 4 == 0  # in accelerate, zero_grad() and step() act only where this is true
        if sync:
            optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if sync:
            optimizer.step()
        yield loss.item()


@discarded_gradients("ultralytics/ultralytics#11217", {"optimizer.zero_grad()\nfor": "for"})
def zeroed_at_the_epochs_start(model, optimizer) -> Losses:
    """Zeroes in the middle of a window: the last 2 of 10 micro-batches are lost; the next update
    holds 2, not 4."""
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


@discarded_gradients(
    "WalkingMeatAxolotl/AnimaLoraStudio#486", {"optimizer.zero_grad()\ncontinue": "continue"} | HELD_COUNTED
)
def zeroed_by_one_loss(model, optimizer) -> Losses:
    """A loss that is NaN zeroes its window: two good micro-batches are lost; the update holds the
    fourth alone."""
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


@discarded_gradients(
    "pytorch/pytorch#181723",
    {
        "for i,": "for p in model.parameters():\n    p.grad = torch.zeros_like(p)\nfor i,",
        "zero_grad()": "zero_grad(set_to_none=False)",
    },
)
def gradients_in_one_buffer() -> Losses:
    """Every backward writes to one buffer, which .grad adopts: an update is half of its window's
    last gradient."""
    model, optimizer = replayed()
    for i, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


# A step without any gradient, or with zeros alone.

empty_step = partial(Specimen, "empty-step")


@empty_step("sacmehta/EdgeNets#14", {"zero_grad()\noptimizer.step()": "step()\noptimizer.zero_grad()"})
def zeroed_before_the_step(model, optimizer) -> Losses:
    """Zeroes between backward and step: none of the 12 updates has a gradient, and no weight ever
    moves."""
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        yield loss.item()


@empty_step("lightseekorg/TorchSpec#33", {"loss = ": "if valid == 0:\n    continue\nloss = "})
def step_without_a_target() -> Losses:
    """Every third batch has no target: its gradient is 0, yet momentum still moves the weights at
    its step."""
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


# Gradients from another loss's backward reach an optimizer's step.

foreign_gradients = partial(Specimen, "foreign-gradients", props=gan)


@foreign_gradients("Lightning-AI/pytorch-lightning#591", {"loss_d = ": "optimizer_d.zero_grad()\nloss_d = "})
def critic_with_the_generators_gradients(generator, critic, optimizer_g, optimizer_d) -> Losses:
    """The generator's loss leaves gradients in the critic, whose step then also learns to call
    fakes real."""
    for real, noise in point_batches(12):
        as_real(critic(generator(noise))).backward()
        optimizer_g.step()
        optimizer_g.zero_grad()

        loss_d = as_real(critic(real)) + as_fake(critic(generator(noise).detach()))
        loss_d.backward()
        optimizer_d.step()
        optimizer_d.zero_grad()
        yield loss_d.item()


@foreign_gradients(
    "FoundationVision/OmniTokenizer#15",
    {"(as_real(": "critic.requires_grad_(False)\n(as_real(", "loss_d = ": "critic.requires_grad_(True)\nloss_d = "},
)
def critic_with_a_window_of_both(generator, critic, optimizer_g, optimizer_d) -> Losses:
    """Accumulates, so it can't zero between the two losses: the critic's window of 2 also holds the
    generator's 2."""
    for i, (real, noise) in enumerate(point_batches(12)):
        fake = generator(noise)
        (as_real(critic(fake)) / 2).backward()
        loss_d = as_real(critic(real)) + as_fake(critic(fake.detach()))
        (loss_d / 2).backward()
        if (i + 1) % 2 == 0:
            for optimizer in (optimizer_g, optimizer_d):
                optimizer.step()
                optimizer.zero_grad()
        yield loss_d.item()
