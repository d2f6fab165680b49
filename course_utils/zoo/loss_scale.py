"""Losses that are not divided, divided twice, or divided by more than the window holds."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from course_utils.zoo.props import classifier, digit_batches, perceptron
from course_utils.zoo.registry import Losses, Specimen


@Specimen(
    source="karpathy/nanoGPT#168",
    what="Adds up the mean losses of 4 micro-batches: every gradient is 4 times that of the large batch.",
    fix={"loss.backward()": "(loss / 4).backward()"},
)
def never_divided() -> Losses:
    model, optimizer = classifier()
    batches = iter(digit_batches(16))
    for _ in range(4):
        for _ in range(4):
            images, labels = next(batches)
            loss = cross_entropy(model(images), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


@Specimen(
    source="verl-project/verl!436",
    what="Divides after backward: the logged loss is correct, but every gradient is 4 times that of the large batch.",
    fix={"loss.backward()\nloss = loss / 4": "loss = loss / 4\nloss.backward()"},
)
def divided_for_the_log() -> Losses:
    model, optimizer = classifier()
    batches = digit_batches(16)
    for k in range(0, 16, 4):
        optimizer.zero_grad()
        step_loss = 0.0
        for images, labels in batches[k : k + 4]:
            loss = cross_entropy(model(images), labels)
            loss.backward()
            loss = loss / 4
            step_loss += loss.item()
        optimizer.step()
        yield step_loss


@Specimen(
    source="huggingface/transformers!35808",
    what="The script divides by 4, and so does the engine: every gradient is a quarter of the large batch's.",
    fix={"engine_backward(loss / 4)": "engine_backward(loss / 4, scale_wrt_gas=False)"},
)
def divided_twice() -> Losses:
    def engine_backward(loss: Tensor, scale_wrt_gas: bool = True) -> None:  # as DeepSpeed's engine
        (loss / 4 if scale_wrt_gas else loss).backward()

    model, optimizer = classifier()
    for i, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        engine_backward(loss / 4)
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@Specimen(
    source="Lightning-AI/pytorch-lightning#19987",
    what="Divides the epoch's last window, of 1 micro-batch, by 4 like the others: a quarter of its gradient is left.",
    fix={"loss / 4": "loss / min(4, 9 - i // 4 * 4)"},
)
def tail_divided_by_n() -> Losses:
    model, optimizer = classifier()
    for _ in range(2):
        for i, (images, labels) in enumerate(digit_batches(9)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0 or i + 1 == 9:
                optimizer.step()
                optimizer.zero_grad()
            yield loss.item()


@Specimen(
    source="agokrani/distillKitPlus#5",
    what="Adds up 4 mean losses that the script itself spells out: every gradient is 4 times the large batch's.",
    fix={"loss.backward()": "(loss / 4).backward()"},
)
def distilled_and_never_divided() -> Losses:
    model, optimizer = classifier()
    teacher = perceptron(64, 10).requires_grad_(False)
    for i, (images, _) in enumerate(2 * digit_batches(8)):
        soft = teacher(images).softmax(-1)
        loss = -(soft * model(images).log_softmax(-1)).sum(-1).mean()
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
