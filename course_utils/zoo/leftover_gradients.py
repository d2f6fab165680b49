"""Micro-batches at the end of an epoch, or of the run, that no step of their own uses."""

from torch.nn.functional import cross_entropy

from course_utils.zoo.props import classifier, digit_batches
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="timoschick/pet#36",
    what="Steps only at every 4th of 14 micro-batches: the last 2 gradients are computed and never used.",
    holds={"SGD": [4, 4, 4]},
    fix={"loss / 4": "loss / min(4, 14 - step // 4 * 4)", "% 4 == 0": "% 4 == 0 or step + 1 == 14"},
)
def tail_never_used() -> Losses:
    model, optimizer = classifier()
    for step, (images, labels) in enumerate(2 * digit_batches(7)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@Specimen(
    source="meta-pytorch/torchtune!2745",
    what="The last 3 of 11 micro-batches wait for the next epoch's first 4: the updates hold 4, 4, 7 and 4.",
    holds={"SGD": [4, 4, 7, 4]},
    fix={"loss / 4": "loss / min(4, 11 - idx // 4 * 4)", "% 4 == 0": "% 4 == 0 or idx + 1 == 11"},
)
def tail_in_the_next_epoch() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        for idx, (images, labels) in enumerate(digit_batches(11)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (idx + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            yield loss.item()
