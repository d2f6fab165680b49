"""Loops whose windows are uneven, or whose losses don't count as they should."""

from functools import partial

from torch import Tensor, no_grad  # noqa: F401
from torch.nn.functional import cross_entropy

from course_utils.zoo.props import bigrams, digit_batches, perceptron, word_windows
from course_utils.zoo.registry import Losses, Specimen
from course_utils.zoo.zeroing import HELD_COUNTED

# Windows of uneven size.

irregular_window = partial(Specimen, "irregular-window")


@irregular_window("rasbt/LLMs-from-scratch#299", {"digit_batches(8))": "digit_batches(8), start=1)"})
def step_at_batch_zero(model, optimizer) -> Losses:
    """Counts from 0 and steps at multiples of 4: the updates hold 1, 4, 4 and 4, and the last 3 are
    never used."""
    for step, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if step % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@irregular_window("Gen-Verse/dLLM-RL#7", {"(step + 1)": "step"})
def counted_from_one_twice(model, optimizer) -> Losses:
    """Counts from 1 and adds 1 again: the updates hold 3, 4, 4 and 4, and the last micro-batch is
    never used."""
    for step, (images, labels) in enumerate(2 * digit_batches(8), start=1):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@irregular_window("huggingface/accelerate#435", {"!= 0": "== 0"})
def condition_inverted(model, optimizer) -> Losses:
    """Steps exactly when it should not: the updates hold 1, 1, 1, 2, 1, 1, 2, ... and each loss is
    divided by 4."""
    for step, (images, labels) in enumerate(2 * digit_batches(8), start=1):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if step % 4 != 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@irregular_window("MeryylleA/lunariscodex#71", HELD_COUNTED)
def step_jumped_over(model, optimizer) -> Losses:
    """A loss that is NaN jumps over the step: the next update holds 7 micro-batches, and each is
    divided by 4."""
    for i, (images, labels) in enumerate(digit_batches(17, damaged=7)):
        loss = cross_entropy(model(images), labels)
        if not loss.isfinite():
            continue
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


# Micro-batches at the end of an epoch, or of the run, that no step of their own uses.

leftover_gradients = partial(Specimen, "leftover-gradients")


@leftover_gradients(
    "timoschick/pet#36", {"loss / 4": "loss / min(4, 14 - step // 4 * 4)", "% 4 == 0": "% 4 == 0 or step + 1 == 14"}
)
def tail_never_used(model, optimizer) -> Losses:
    """Steps only at every 4th of 14 micro-batches: the last 2 gradients are computed and never
    used."""
    for step, (images, labels) in enumerate(2 * digit_batches(7)):
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@leftover_gradients(
    "meta-pytorch/torchtune#2745",
    {"loss / 4": "loss / min(4, 11 - idx // 4 * 4)", "% 4 == 0": "% 4 == 0 or idx + 1 == 11"},
)
def tail_in_the_next_epoch(model, optimizer) -> Losses:
    """The last 3 of 11 micro-batches wait for the next epoch's first 4: the updates hold 4, 4, 7
    and 4."""
    for _ in range(2):
        for idx, (images, labels) in enumerate(digit_batches(11)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (idx + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            yield loss.item()


@leftover_gradients(
    "fengxinjie/Transformer-OCR#7", {"loss = ": "with no_grad():\n    loss = ", "loss.backward()": ""}, listed=False
)
def backward_in_validation(model, optimizer) -> Losses:
    """Calls backward in validation, too: the next epoch's first update also uses 2 test batches."""
    for _ in range(2):
        for images, labels in digit_batches(6):
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        for images, labels in digit_batches(8)[6:]:
            loss = cross_entropy(model(images), labels)
            loss.backward()
            yield loss.item()


# Losses that are not divided, divided twice, or divided by more than the window holds.

loss_scale = partial(Specimen, "loss-scale")


@loss_scale("karpathy/nanoGPT#168", {"loss.backward()": "(loss / 4).backward()"})
def never_divided(model, optimizer) -> Losses:
    """Adds up the mean losses of 4 micro-batches: every gradient is 4 times that of the large
    batch."""
    for k in range(0, 16, 4):
        for images, labels in digit_batches(16)[k : k + 4]:
            loss = cross_entropy(model(images), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


@loss_scale("verl-project/verl#436", {"loss.backward()\nloss = loss / 4": "loss = loss / 4\nloss.backward()"})
def divided_for_the_log(model, optimizer) -> Losses:
    """Divides after backward: the logged loss is correct, but every gradient is 4 times that of the
    large batch."""
    for k in range(0, 16, 4):
        optimizer.zero_grad()
        step_loss = 0.0
        for images, labels in digit_batches(16)[k : k + 4]:
            loss = cross_entropy(model(images), labels)
            loss.backward()
            loss = loss / 4
            step_loss += loss.item()
        optimizer.step()
        yield step_loss


@loss_scale("huggingface/transformers#35808", {"loss / 4)": "loss / 4, scale_wrt_gas=False)"})
def divided_twice(model, optimizer) -> Losses:
    """The script divides by 4, and so does the engine: every gradient is a quarter of the large
    batch's."""

    def engine_backward(loss: Tensor, scale_wrt_gas: bool = True) -> None:  # as DeepSpeed's engine
        (loss / 4 if scale_wrt_gas else loss).backward()

    for i, (images, labels) in enumerate(2 * digit_batches(8)):
        loss = cross_entropy(model(images), labels)
        engine_backward(loss / 4)
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@loss_scale("Lightning-AI/pytorch-lightning#19987", {"loss / 4": "loss / min(4, 9 - i // 4 * 4)"})
def tail_divided_by_n(model, optimizer) -> Losses:
    """Divides the epoch's last window, of 1 micro-batch, by 4 like the others: a quarter of its
    gradient is left."""
    for _ in range(2):
        for i, (images, labels) in enumerate(digit_batches(9)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0 or i + 1 == 9:
                optimizer.step()
                optimizer.zero_grad()
            yield loss.item()


@loss_scale("agokrani/distillKitPlus#5", {"loss.backward()": "(loss / 4).backward()"})
def distilled_and_never_divided(model, optimizer) -> Losses:
    """Adds up 4 mean losses that the script itself spells out: every gradient is 4 times the large
    batch's."""
    teacher = perceptron(64, 10).requires_grad_(False)
    for i, (images, _) in enumerate(2 * digit_batches(8)):
        soft = teacher(images).softmax(-1)
        loss = -(soft * model(images).log_softmax(-1)).sum(-1).mean()
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


# Micro-batches with unequal numbers of targets count alike.

token_weights = partial(Specimen, "token-weights", props=bigrams)


@token_weights("huggingface/trl#2175", {"/ 4": "* (follow != -100).sum() / sum((y != -100).sum() for _, y in window)"})
def mean_of_means(model, optimizer) -> Losses:
    """Batches of 8, 44, 8 and 44 targets count a quarter each: short ones' targets have 5.5 times
    the weight."""
    for window in word_windows():
        for letters, follow in window:
            loss = cross_entropy(model(letters).flatten(0, 1), follow.flatten(), ignore_index=-100)
            (loss / 4).backward()
            yield loss.item()
        optimizer.step()
        optimizer.zero_grad()


@token_weights("allenai/open-instruct#1161", {"mask.sum() / 4": "sum((y != -100).sum() for _, y in window)"})
def masked_mean_per_micro_batch(model, optimizer) -> Losses:
    """A masked mean over each micro-batch instead of the window: one target counts 1/32 or 1/176,
    not 1/104."""
    for window in word_windows():
        for letters, follow in window:
            mask = follow != -100
            per_token = cross_entropy(model(letters).transpose(1, 2), follow, reduction="none")
            loss = (per_token * mask).sum() / mask.sum() / 4
            loss.backward()
            yield loss.item()
        optimizer.step()
        optimizer.zero_grad()
