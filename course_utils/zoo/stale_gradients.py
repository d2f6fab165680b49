"""Gradients of an earlier update are still there when the next window begins."""

from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from course_utils.zoo.props import as_fake, as_real, classifier, digit_batches, gan, perceptron, point_batches
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="wenet-e2e/wekws#72",
    what="No line zeroes: update k uses the sum of the gradients of all k batches so far.",
    holds={"SGD": [*range(1, 13)]},
    fix={"loss.backward()": "optimizer.zero_grad()\nloss.backward()"},
)
def never_zeroed() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        for images, labels in digit_batches(6):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            yield loss.item()


@Specimen(
    source="pytorch/pytorch#47175",
    what="Zeroes at the start of an epoch instead of a batch: its six updates use 1, 2, 3, 4, 5 and 6 batches.",
    holds={"SGD": [*range(1, 7)] * 2},
    fix={"optimizer.zero_grad()": "", "loss.backward()": "optimizer.zero_grad()\nloss.backward()"},
)
def zeroed_once_an_epoch() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        optimizer.zero_grad()
        for images, labels in digit_batches(6):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            yield loss.item()


@Specimen(
    source="IDEA-Research/DN-DETR#19",
    what="No line zeroes, and clipping hides it: each step clips the last clipped sum plus a new gradient to 0.1.",
    holds={"SGD": [*range(1, 13)]},
    fix={"loss.backward()": "optimizer.zero_grad()\nloss.backward()"},
)
def clipped_running_sum() -> Losses:
    model, optimizer = classifier(lr=0.5)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()
        yield loss.item()


@Specimen(
    source="ajbrock/BigGAN-PyTorch#25",
    what="Zeroes before the critic's two steps but not between them: the second step uses the first gradient again.",
    holds={"SGD": [1, 2] * 6, "SGD 2": [1] * 6},
    fix={"optimizer_d.zero_grad()": "", "loss_d.backward()": "optimizer_d.zero_grad()\nloss_d.backward()"},
)
def critic_zeroed_once() -> Losses:
    generator, critic, optimizer_g, optimizer_d = gan()
    points = point_batches(12)
    for k in range(6):
        optimizer_d.zero_grad()
        critic.requires_grad_(True)
        for real, noise in points[2 * k : 2 * k + 2]:  # two steps of the critic for one of the generator
            loss_d = as_real(critic(real)) + as_fake(critic(generator(noise).detach()))
            loss_d.backward()
            optimizer_d.step()
            yield loss_d.item()
        critic.requires_grad_(False)
        optimizer_g.zero_grad()
        as_real(critic(generator(noise))).backward()
        optimizer_g.step()


@Specimen(
    source="MorvanZhou/pytorch-A3C#21",
    what="Zeroes the shared model and not the local one, which hands it its gradients: update k uses the sum of k.",
    fix={"optimizer.zero_grad()": "local.zero_grad()"},
)
def local_model_never_zeroed() -> Losses:
    shared, optimizer = classifier()
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


@Specimen(
    source="greebear/pytorch-learning#1",
    what="Writes the update by hand, and zeroes nothing: each subtracts the sum of all gradients so far.",
    fix={"p.grad.data": "p.grad.data\np.grad.data.zero_()"},
)
def update_by_hand_never_zeroed() -> Losses:
    model = perceptron(64, 16, 10)
    for images, labels in 2 * digit_batches(6):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad.data
        yield loss.item()
