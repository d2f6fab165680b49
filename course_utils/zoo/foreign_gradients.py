"""Gradients from another loss's backward reach an optimizer's step."""

from course_utils.zoo.props import as_fake, as_real, gan, point_batches
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="Lightning-AI/pytorch-lightning#591",
    what="The generator's loss leaves gradients in the critic, whose step then also learns to call fakes real.",
    holds={"SGD": [1] * 12, "SGD 2": [2] * 12},
    fix={
        "loss_d.backward()": "optimizer_d.zero_grad()\nloss_d.backward()",
        "optimizer_d.step()\noptimizer_d.zero_grad()": "optimizer_d.step()",
    },
)
def critic_with_the_generators_gradients() -> Losses:
    generator, critic, optimizer_g, optimizer_d = gan()
    for real, noise in point_batches(12):
        as_real(critic(generator(noise))).backward()
        optimizer_g.step()
        optimizer_g.zero_grad()

        loss_d = as_real(critic(real)) + as_fake(critic(generator(noise).detach()))
        loss_d.backward()
        optimizer_d.step()
        optimizer_d.zero_grad()
        yield loss_d.item()


@Specimen(
    source="FoundationVision/OmniTokenizer#15",
    what="Accumulates, so it can't zero between the two losses: the critic's window of 2 also holds the generator's 2.",
    holds={"SGD": [2] * 6, "SGD 2": [4] * 6},
    fix={"(as_real(": "critic.requires_grad_(False)\n(as_real(", "loss_d = ": "critic.requires_grad_(True)\nloss_d = "},
)
def critic_with_a_window_of_both() -> Losses:
    generator, critic, optimizer_g, optimizer_d = gan()
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
