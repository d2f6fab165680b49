"""A loss that is computed, logged and left out of the total."""

from torch.nn.functional import cross_entropy

from course_utils.zoo.props import classifier, digit_batches
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    level="advice",
    source="mims-harvard/TFC-pretraining#37",
    what="Computes a second loss for every batch, and leaves it out of the total: nothing learns from it.",
    fix={"total = loss": "total = (loss + loss_moved) / 2"},
)
def second_loss_left_out() -> Losses:
    model, optimizer = classifier()
    for images, labels in 2 * digit_batches(8):
        loss = cross_entropy(model(images), labels)
        loss_moved = cross_entropy(model(images.roll(1, dims=1)), labels)
        total = loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        yield loss.item() + loss_moved.item()
