"""Windows of uneven size."""

from torch.nn.functional import cross_entropy

from course_utils.zoo.props import classifier, digit_batches
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="rasbt/LLMs-from-scratch#299",
    what="Counts from 0 and steps at multiples of 4: the updates hold 1, 4, 4 and 4, and the last 3 are never used.",
    holds={"SGD": [1, 4, 4, 4]},
    fix={"digit_batches(8))": "digit_batches(8), start=1)"},
)
def step_at_batch_zero() -> Losses:
    model, optimizer = classifier()
    for step, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if step % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@Specimen(
    source="Gen-Verse/dLLM-RL#7",
    what="Counts from 1 and adds 1 again: the updates hold 3, 4, 4 and 4, and the last micro-batch is never used.",
    holds={"SGD": [3, 4, 4, 4]},
    fix={"(step + 1)": "step"},
)
def counted_from_one_twice() -> Losses:
    model, optimizer = classifier()
    for step, (images, labels) in enumerate(2 * digit_batches(8), start=1):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@Specimen(
    source="huggingface/accelerate#435",
    what="Steps exactly when it should not: the updates hold 1, 1, 1, 2, 1, 1, 2, ... and each loss is divided by 4.",
    holds={"SGD": [1, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]},
    fix={"!= 0": "== 0"},
)
def condition_inverted() -> Losses:
    model, optimizer = classifier()
    for step, (images, labels) in enumerate(2 * digit_batches(8), start=1):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if step % 4 != 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@Specimen(
    source="MeryylleA/lunariscodex!71",
    what="A loss that is NaN jumps over the step: the next update holds 7 micro-batches, and each is divided by 4.",
    holds={"SGD": [4, 7, 4]},
    fix={"for i,": "held = 0\nfor i,", "(loss / 4).backward()": "(loss / 4).backward()\nheld += 1", "(i + 1)": "held"},
)
def step_jumped_over() -> Losses:
    model, optimizer = classifier()
    for i, (images, labels) in enumerate(digit_batches(17, damaged=7)):
        loss = cross_entropy(model(images), labels)
        if not loss.isfinite():
            continue
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
