"""A schedule that counts updates, stepped in every micro-batch. PyTorch warns of these, once."""

from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LinearLR, PolynomialLR

from course_utils.zoo.props import classifier, digit_batches
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="Lightning-AI/pytorch-lightning#1476",
    what="Steps the schedule in every micro-batch: a warm-up that should take 4 updates is over after the first.",
    fix={"scheduler.step()": "", "optimizer.zero_grad()": "optimizer.zero_grad()\nscheduler.step()"},
)
def warmup_in_micro_batches() -> Losses:
    model, optimizer = classifier()
    scheduler = LinearLR(optimizer, start_factor=0.25, total_iters=4)  # counts updates
    for i, (images, labels) in enumerate(2 * digit_batches(12)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        yield loss.item()


@Specimen(
    source="starVLA/starVLA!210",
    what="Steps a decay over 6 updates in every micro-batch: the learning rate is 0 from the second update on.",
    fix={"scheduler.step()": "", "optimizer.zero_grad()": "optimizer.zero_grad()\nscheduler.step()"},
)
def decay_in_micro_batches() -> Losses:
    model, optimizer = classifier()
    scheduler = PolynomialLR(optimizer, total_iters=6)  # counts updates
    for step, (images, labels) in enumerate(digit_batches(24)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        yield loss.item()
