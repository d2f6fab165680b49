"""A zoo of wrong training loops: each was found in someone's code and reported in public; each stands beside its mend.

`ZOO[name].wrong()` trains a small model as the source did and returns the losses that its author would have logged;
`ZOO[name].mended()` does the same with the bug taken out and nothing else changed. Sizes and data are this course's
own; what comes in which order is the source's. Needs torch alone.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LinearLR, PolynomialLR

from course_utils.data import digits, words


@dataclass(frozen=True)
class Specimen:
    """One wrong loop and its mend.

    `rule`: the auditor's rule that should find it; `source`: where it was reported; `what`: what the loop does wrong.

    >>> ZOO["never-zeroed"].rule, ZOO["never-zeroed"].url
    ('stale-gradients', 'https://github.com/wenet-e2e/wekws/issues/72')
    """

    name: str
    rule: str
    source: str
    url: str
    wrong: Callable[[], list[float]]
    mended: Callable[[], list[float]]
    what: str


ZOO: dict[str, Specimen] = {}


def _pair(wrong: Callable, mended: Callable, rule: str, source: str, what: str) -> None:
    """Enters two functions `..._wrong` and `..._mended`. A "!" in `source` stands for a pull request."""
    name = wrong.__name__.removesuffix("_wrong").replace("_", "-")
    url = "https://github.com/" + source.replace("!", "/pull/").replace("#", "/issues/")
    wrong.__doc__, mended.__doc__ = what, f"The mend of {name}."
    ZOO[name] = Specimen(name, rule, source.replace("!", "#"), url, wrong, mended, what)


# What the loops train, and on what. Numbers are float64 and seeds are local, whatever the caller has set.


@contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


def _model(*sizes: int) -> nn.Sequential:
    """A perceptron, the same at each call."""
    with _seeded():
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair, dtype=torch.float64), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


@cache
def _digits() -> tuple[Tensor, Tensor]:
    images, labels = digits()
    return images.double(), labels


def _batches(count: int, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of handwritten digits."""
    images, labels = (tensor[: count * size].split(size) for tensor in _digits())
    return list(zip(images, labels, strict=True))


def _reader() -> nn.Sequential:
    """Guesses each next letter from the one before."""
    with _seeded():
        return nn.Sequential(nn.Embedding(27, 8, dtype=torch.float64), nn.Linear(8, 27, dtype=torch.float64))


@cache
def _texts() -> list[tuple[Tensor, Tensor]]:
    """8 micro-batches of 4 words: letters, and the letters that follow, with -100 where a word has ended.

    Words of 3 letters and words of 12 take turns, so that micro-batches hold 8 targets or 44.
    """
    three, twelve = ([word for word in words() if len(word) == length] for length in (3, 12))
    batches = []
    for k in range(8):
        chosen = (twelve if k % 2 else three)[4 * k : 4 * k + 4]
        letters = torch.tensor(
            [[ord(letter) - ord("a") + 1 for letter in word] + [0] * (12 - len(word)) for word in chosen]
        )
        follow = letters[:, 1:].masked_fill(letters[:, 1:] == 0, -100)
        batches.append((letters[:, :-1], follow))
    return batches


def _gan() -> tuple[nn.Sequential, nn.Sequential, SGD, SGD]:
    """A generator of points from noise, a critic of points, and an optimizer for each."""
    generator, critic = _model(2, 8, 2), _model(2, 8, 1)
    return generator, critic, SGD(generator.parameters(), lr=0.1), SGD(critic.parameters(), lr=0.1)


def _points(count: int) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of 8 real points and 8 pieces of noise."""
    draw = torch.Generator().manual_seed(0)
    real, noise = (torch.randn(count * 8, 2, generator=draw, dtype=torch.float64) for _ in range(2))
    return list(zip((real * 0.5 + 1).split(8), noise.split(8), strict=True))


def _as_real(logits: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


def _as_fake(logits: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))


# stale-gradients


def never_zeroed_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def never_zeroed_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    never_zeroed_wrong,
    never_zeroed_mended,
    rule="stale-gradients",
    source="wenet-e2e/wekws#72",
    what="No line zeroes: update k uses the sum of the gradients of all k batches so far.",
)


def zeroed_once_an_epoch_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def zeroed_once_an_epoch_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    zeroed_once_an_epoch_wrong,
    zeroed_once_an_epoch_mended,
    rule="stale-gradients",
    source="pytorch/pytorch#47175",
    what="Zeroes at the start of an epoch instead of a batch: its six updates use 1, 2, 3, 4, 5 and 6 batches.",
)


def clipped_running_sum_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            optimizer.step()
            losses.append(loss.item())
    return losses


def clipped_running_sum_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    clipped_running_sum_wrong,
    clipped_running_sum_mended,
    rule="stale-gradients",
    source="IDEA-Research/DN-DETR#19",
    what="No line zeroes, and clipping hides it: what is clipped to 0.1 is the last clipped sum and a new gradient.",
)


def critic_zeroed_once_wrong() -> list[float]:
    generator, critic, optimizer_g, optimizer_d = _gan()
    points, losses = _points(12), []
    for k in range(6):
        optimizer_d.zero_grad()
        critic.requires_grad_(True)
        for real, noise in points[2 * k : 2 * k + 2]:  # two steps of the critic for one of the generator
            loss_d = _as_real(critic(real)) + _as_fake(critic(generator(noise).detach()))
            loss_d.backward()
            optimizer_d.step()
            losses.append(loss_d.item())
        critic.requires_grad_(False)
        optimizer_g.zero_grad()
        _as_real(critic(generator(noise))).backward()
        optimizer_g.step()
    return losses


def critic_zeroed_once_mended() -> list[float]:
    generator, critic, optimizer_g, optimizer_d = _gan()
    points, losses = _points(12), []
    for k in range(6):
        critic.requires_grad_(True)
        for real, noise in points[2 * k : 2 * k + 2]:  # two steps of the critic for one of the generator
            optimizer_d.zero_grad()
            loss_d = _as_real(critic(real)) + _as_fake(critic(generator(noise).detach()))
            loss_d.backward()
            optimizer_d.step()
            losses.append(loss_d.item())
        critic.requires_grad_(False)
        optimizer_g.zero_grad()
        _as_real(critic(generator(noise))).backward()
        optimizer_g.step()
    return losses


_pair(
    critic_zeroed_once_wrong,
    critic_zeroed_once_mended,
    rule="stale-gradients",
    source="ajbrock/BigGAN-PyTorch#25",
    what="Zeroes before the critic's two steps and not between them: its second step uses its first gradient again.",
)


# discarded-gradients


def zeroed_in_every_micro_batch_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
            losses.append(loss.item())
    return losses


def zeroed_in_every_micro_batch_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    zeroed_in_every_micro_batch_wrong,
    zeroed_in_every_micro_batch_mended,
    rule="discarded-gradients",
    source="bytetriper/RAE#67",
    what="Zeroes before every micro-batch: of four, only the last one's gradient reaches the step, divided by 4.",
)


def zeroed_in_the_last_micro_batch_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            sync = (i + 1) % 4 == 0  # in accelerate, zero_grad() and step() act only where this is true
            if sync:
                optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if sync:
                optimizer.step()
            losses.append(loss.item())
    return losses


def zeroed_in_the_last_micro_batch_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            sync = (i + 1) % 4 == 0  # in accelerate, zero_grad() and step() act only where this is true
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if sync:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    zeroed_in_the_last_micro_batch_wrong,
    zeroed_in_the_last_micro_batch_mended,
    rule="discarded-gradients",
    source="starVLA/starVLA#395",
    what="Zeroes just before the window's last backward: three of four micro-batches are thrown away.",
)


def zeroed_at_the_epochs_start_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    last_step, losses = -1, []
    for epoch in range(2):
        optimizer.zero_grad()
        for i, (images, labels) in enumerate(_batches(10)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if epoch * 10 + i - last_step >= 4:
                optimizer.step()
                optimizer.zero_grad()
                last_step = epoch * 10 + i
            losses.append(loss.item())
    return losses


def zeroed_at_the_epochs_start_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    last_step, losses = -1, []
    for epoch in range(2):
        for i, (images, labels) in enumerate(_batches(10)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if epoch * 10 + i - last_step >= 4:
                optimizer.step()
                optimizer.zero_grad()
                last_step = epoch * 10 + i
            losses.append(loss.item())
    return losses


_pair(
    zeroed_at_the_epochs_start_wrong,
    zeroed_at_the_epochs_start_mended,
    rule="discarded-gradients",
    source="ultralytics/ultralytics!11217",
    what="Zeroes while a window is open: the last 2 of 10 micro-batches are lost, and the next update holds 2, not 4.",
)


# empty-step


def zeroed_before_the_step_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            losses.append(loss.item())
    return losses


def zeroed_before_the_step_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    zeroed_before_the_step_wrong,
    zeroed_before_the_step_mended,
    rule="empty-step",
    source="sacmehta/EdgeNets#14",
    what="Zeroes between backward and step: none of the 12 updates has a gradient, and no weight ever moves.",
)


def step_without_a_target_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = AdamW(model.parameters(), lr=0.01)
    losses = []
    for i, (images, labels) in enumerate(_batches(12)):
        if i % 3 == 2:
            labels = torch.full_like(labels, -100)  # a batch in which every answer was cut off
        valid = (labels != -100).sum()
        loss = cross_entropy(model(images), labels, reduction="sum") / valid.clamp(min=1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def step_without_a_target_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = AdamW(model.parameters(), lr=0.01)
    losses = []
    for i, (images, labels) in enumerate(_batches(12)):
        if i % 3 == 2:
            labels = torch.full_like(labels, -100)  # a batch in which every answer was cut off
        valid = (labels != -100).sum()
        if valid == 0:
            continue
        loss = cross_entropy(model(images), labels, reduction="sum") / valid.clamp(min=1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


_pair(
    step_without_a_target_wrong,
    step_without_a_target_mended,
    rule="empty-step",
    source="lightseekorg/TorchSpec!33",
    what="Every third batch has no target, so its gradient is 0, and its step still moves the weights by momentum.",
)


# foreign-gradients


def critic_with_the_generators_gradients_wrong() -> list[float]:
    generator, critic, optimizer_g, optimizer_d = _gan()
    losses = []
    for real, noise in _points(12):
        _as_real(critic(generator(noise))).backward()
        optimizer_g.step()
        optimizer_g.zero_grad()

        loss_d = _as_real(critic(real)) + _as_fake(critic(generator(noise).detach()))
        loss_d.backward()
        optimizer_d.step()
        optimizer_d.zero_grad()
        losses.append(loss_d.item())
    return losses


def critic_with_the_generators_gradients_mended() -> list[float]:
    generator, critic, optimizer_g, optimizer_d = _gan()
    losses = []
    for real, noise in _points(12):
        _as_real(critic(generator(noise))).backward()
        optimizer_g.step()
        optimizer_g.zero_grad()

        loss_d = _as_real(critic(real)) + _as_fake(critic(generator(noise).detach()))
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()
        losses.append(loss_d.item())
    return losses


_pair(
    critic_with_the_generators_gradients_wrong,
    critic_with_the_generators_gradients_mended,
    rule="foreign-gradients",
    source="Lightning-AI/pytorch-lightning#591",
    what="The generator's loss leaves gradients in the critic, whose step then also learns to call forgeries real.",
)


def critic_with_a_window_of_both_wrong() -> list[float]:
    generator, critic, optimizer_g, optimizer_d = _gan()
    losses = []
    for i, (real, noise) in enumerate(_points(12)):
        fake = generator(noise)
        (_as_real(critic(fake)) / 2).backward()
        loss_d = _as_real(critic(real)) + _as_fake(critic(fake.detach()))
        (loss_d / 2).backward()
        if (i + 1) % 2 == 0:
            for optimizer in (optimizer_g, optimizer_d):
                optimizer.step()
                optimizer.zero_grad()
        losses.append(loss_d.item())
    return losses


def critic_with_a_window_of_both_mended() -> list[float]:
    generator, critic, optimizer_g, optimizer_d = _gan()
    losses = []
    for i, (real, noise) in enumerate(_points(12)):
        fake = generator(noise)
        critic.requires_grad_(False)
        (_as_real(critic(fake)) / 2).backward()
        critic.requires_grad_(True)
        loss_d = _as_real(critic(real)) + _as_fake(critic(fake.detach()))
        (loss_d / 2).backward()
        if (i + 1) % 2 == 0:
            for optimizer in (optimizer_g, optimizer_d):
                optimizer.step()
                optimizer.zero_grad()
        losses.append(loss_d.item())
    return losses


_pair(
    critic_with_a_window_of_both_wrong,
    critic_with_a_window_of_both_mended,
    rule="foreign-gradients",
    source="FoundationVision/OmniTokenizer#15",
    what="With accumulation nothing can be zeroed between the two losses: the critic's window of 2 holds 2 of each.",
)


# orphan-parameters


def optimizer_before_wrapping_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    model = copy.deepcopy(model)  # as FSDP does when it flattens: new parameters in place of the old
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def optimizer_before_wrapping_mended() -> list[float]:
    model = _model(64, 16, 10)
    model = copy.deepcopy(model)  # as FSDP does when it flattens: new parameters in place of the old
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    optimizer_before_wrapping_wrong,
    optimizer_before_wrapping_mended,
    rule="orphan-parameters",
    source="huggingface/accelerate#2665",
    what="The optimizer holds the 4 parameters from before the model was wrapped: none of them ever gets a gradient.",
)


def parameter_replaced_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        for i, (images, labels) in enumerate(_batches(6)):
            if epoch == i == 0:  # the first layer takes its range from the first batch
                model[0].weight = nn.Parameter(model[0].weight.detach() / images.std())
            loss = cross_entropy(model(images), labels)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def parameter_replaced_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        for i, (images, labels) in enumerate(_batches(6)):
            if epoch == i == 0:  # the first layer takes its range from the first batch
                model[0].weight.data.div_(images.std())
            loss = cross_entropy(model(images), labels)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    parameter_replaced_wrong,
    parameter_replaced_mended,
    rule="orphan-parameters",
    source="openvinotoolkit/nncf!327",
    what="A parameter is replaced after the optimizer was made: 1,024 weights get gradients and are never updated.",
)


# irregular-window


def step_at_batch_zero_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for batch_idx, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if batch_idx % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def step_at_batch_zero_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for batch_idx, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (batch_idx + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    step_at_batch_zero_wrong,
    step_at_batch_zero_mended,
    rule="irregular-window",
    source="rasbt/LLMs-from-scratch#299",
    what="Counts from 0 and steps at multiples of 4: the updates hold 1, 4, 4 and 4, and the last 3 are never used.",
)


def counted_from_one_twice_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for step, (images, labels) in enumerate(_batches(8), start=1):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (step + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def counted_from_one_twice_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for step, (images, labels) in enumerate(_batches(8), start=1):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    counted_from_one_twice_wrong,
    counted_from_one_twice_mended,
    rule="irregular-window",
    source="Gen-Verse/dLLM-RL#7",
    what="Counts from 1 and adds 1 again: the updates hold 3, 4, 4 and 4, and the last micro-batch is never used.",
)


def condition_inverted_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for step, (images, labels) in enumerate(_batches(8), start=1):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if step % 4 != 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def condition_inverted_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for step, (images, labels) in enumerate(_batches(8), start=1):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    condition_inverted_wrong,
    condition_inverted_mended,
    rule="irregular-window",
    source="huggingface/accelerate#435",
    what="Steps where it should not and not where it should: updates of 1, 1, 1, 2, 1, 1, 2, ... each divided by 4.",
)


# leftover-gradients


def tail_never_used_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    step, losses = 0, []
    for _ in range(2):
        for images, labels in _batches(7):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            step += 1
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def tail_never_used_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    step, losses = 0, []
    for _ in range(2):
        for images, labels in _batches(7):
            loss = cross_entropy(model(images), labels)
            (loss / min(4, 14 - step // 4 * 4)).backward()
            step += 1
            if step % 4 == 0 or step == 14:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    tail_never_used_wrong,
    tail_never_used_mended,
    rule="leftover-gradients",
    source="timoschick/pet#36",
    what="Steps at every 4th of 14 micro-batches and at no other: the last 2 are computed and never used.",
)


def tail_in_the_next_epoch_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for idx, (images, labels) in enumerate(_batches(11)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (idx + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def tail_in_the_next_epoch_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for idx, (images, labels) in enumerate(_batches(11)):
            loss = cross_entropy(model(images), labels)
            (loss / min(4, 11 - idx // 4 * 4)).backward()
            if (idx + 1) % 4 == 0 or idx + 1 == 11:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    tail_in_the_next_epoch_wrong,
    tail_in_the_next_epoch_mended,
    rule="leftover-gradients",
    source="meta-pytorch/torchtune!2745",
    what="The last 3 of 11 micro-batches wait for the next epoch's first 4: the updates hold 4, 4, 7 and 4.",
)


# loss-scale


def never_divided_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    batches, losses = iter(_batches(16)), []
    for _ in range(4):
        for _ in range(4):
            images, labels = next(batches)
            loss = cross_entropy(model(images), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def never_divided_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    batches, losses = iter(_batches(16)), []
    for _ in range(4):
        for _ in range(4):
            images, labels = next(batches)
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


_pair(
    never_divided_wrong,
    never_divided_mended,
    rule="loss-scale",
    source="karpathy/nanoGPT#168",
    what="Adds up the mean losses of 4 micro-batches: every gradient is 4 times that of the large batch.",
)


def divided_for_the_log_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    batches, losses = _batches(16), []
    for k in range(0, 16, 4):
        optimizer.zero_grad()
        step_loss = 0.0
        for images, labels in batches[k : k + 4]:
            loss = cross_entropy(model(images), labels)
            loss.backward()
            loss = loss / 4
            step_loss += loss.item()
        optimizer.step()
        losses.append(step_loss)
    return losses


def divided_for_the_log_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    batches, losses = _batches(16), []
    for k in range(0, 16, 4):
        optimizer.zero_grad()
        step_loss = 0.0
        for images, labels in batches[k : k + 4]:
            loss = cross_entropy(model(images), labels)
            loss = loss / 4
            loss.backward()
            step_loss += loss.item()
        optimizer.step()
        losses.append(step_loss)
    return losses


_pair(
    divided_for_the_log_wrong,
    divided_for_the_log_mended,
    rule="loss-scale",
    source="verl-project/verl!436",
    what="Divides after backward: the logged loss is right, and every gradient is 4 times that of the large batch.",
)


def divided_twice_wrong() -> list[float]:
    def engine_backward(loss: Tensor, scale_wrt_gas: bool = True) -> None:  # as DeepSpeed's engine
        (loss / 4 if scale_wrt_gas else loss).backward()

    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            engine_backward(loss / 4)
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def divided_twice_mended() -> list[float]:
    def engine_backward(loss: Tensor, scale_wrt_gas: bool = True) -> None:  # as DeepSpeed's engine
        (loss / 4 if scale_wrt_gas else loss).backward()

    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            engine_backward(loss / 4, scale_wrt_gas=False)
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    divided_twice_wrong,
    divided_twice_mended,
    rule="loss-scale",
    source="huggingface/transformers!35808",
    what="The script divides by 4, and so does the engine below it: every gradient is a quarter of the large batch's.",
)


def tail_divided_by_n_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(9)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0 or i + 1 == 9:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def tail_divided_by_n_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(9)):
            loss = cross_entropy(model(images), labels)
            (loss / min(4, 9 - i // 4 * 4)).backward()
            if (i + 1) % 4 == 0 or i + 1 == 9:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    tail_divided_by_n_wrong,
    tail_divided_by_n_mended,
    rule="loss-scale",
    source="Lightning-AI/pytorch-lightning#19987",
    what="The epoch's last window holds 1 micro-batch and is divided by 4 like the others: a quarter of its gradient.",
)


# token-weights


def mean_of_means_wrong() -> list[float]:
    model = _reader()
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for k in range(0, 8, 4):
            window = _texts()[k : k + 4]
            for letters, follow in window:
                loss = cross_entropy(model(letters).flatten(0, 1), follow.flatten(), ignore_index=-100)
                (loss / 4).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


def mean_of_means_mended() -> list[float]:
    model = _reader()
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for k in range(0, 8, 4):
            window = _texts()[k : k + 4]
            tokens = sum((follow != -100).sum() for _, follow in window)
            for letters, follow in window:
                loss = cross_entropy(model(letters).flatten(0, 1), follow.flatten(), ignore_index=-100)
                (loss * (follow != -100).sum() / tokens).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


_pair(
    mean_of_means_wrong,
    mean_of_means_mended,
    rule="token-weights",
    source="huggingface/trl#2175",
    what="Batches of 8, 44, 8 and 44 targets count a quarter each: targets of the short ones weigh 5.5 times as much.",
)


def masked_mean_per_micro_batch_wrong() -> list[float]:
    def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
        return (values * mask).sum() / mask.sum()

    model = _reader()
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for k in range(0, 8, 4):
            window = _texts()[k : k + 4]
            for letters, follow in window:
                per_token = cross_entropy(model(letters).transpose(1, 2), follow, reduction="none")
                loss = masked_mean(per_token, follow != -100) / 4
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


def masked_mean_per_micro_batch_mended() -> list[float]:
    def masked_mean(values: Tensor, mask: Tensor, denominator: Tensor) -> Tensor:
        return (values * mask).sum() / denominator

    model = _reader()
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for k in range(0, 8, 4):
            window = _texts()[k : k + 4]
            tokens = torch.stack([(follow != -100).sum() for _, follow in window]).sum()
            for letters, follow in window:
                per_token = cross_entropy(model(letters).transpose(1, 2), follow, reduction="none")
                loss = masked_mean(per_token, follow != -100, tokens)
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


_pair(
    masked_mean_per_micro_batch_wrong,
    masked_mean_per_micro_batch_mended,
    rule="token-weights",
    source="allenai/open-instruct!1161",
    what="A masked mean over each micro-batch instead of the window: one target counts 1/32 or 1/176, not 1/104.",
)


# clip-timing


def clipped_in_every_micro_batch_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for step, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            if (step + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def clipped_in_every_micro_batch_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for step, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (step + 1) % 4 == 0:
                clip_grad_norm_(model.parameters(), max_norm=0.1)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    clipped_in_every_micro_batch_wrong,
    clipped_in_every_micro_batch_mended,
    rule="clip-timing",
    source="huggingface/transformers#986",
    what="Clips after each of 4 backward calls: the first gradient is shortened up to 4 times, the last one once.",
)


def clipped_before_backward_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def clipped_before_backward_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    clipped_before_backward_wrong,
    clipped_before_backward_mended,
    rule="clip-timing",
    source="simchowitzlabpublic/nano-world-model!22",
    what="Clips before backward, when there is no gradient: the limit of 0.1 is never kept.",
)


def clipped_after_the_step_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            losses.append(loss.item())
    return losses


def clipped_after_the_step_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            optimizer.step()
            losses.append(loss.item())
    return losses


_pair(
    clipped_after_the_step_wrong,
    clipped_after_the_step_mended,
    rule="clip-timing",
    source="jongwook/onsets-and-frames#24",
    what="Clips after the step, when the gradient has been used: the limit of 0.1 is never kept.",
)


def clipped_before_unscale_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    scaler = GradScaler("cpu", init_scale=1024.0)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


def clipped_before_unscale_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.5)
    scaler = GradScaler("cpu", init_scale=1024.0)
    losses = []
    for _ in range(2):
        for images, labels in _batches(6):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), max_norm=0.1)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


_pair(
    clipped_before_unscale_wrong,
    clipped_before_unscale_mended,
    rule="clip-timing",
    source="milesial/Pytorch-UNet!470",
    what="Clips gradients that still carry the scaler's factor of 1024: after unscaling their norm is 0.1 / 1024.",
)


# scaler-timing


def unscaled_in_every_micro_batch_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            scaler.scale(loss / 4).backward()
            scaler.unscale_(optimizer)
            if (i + 1) % 4 == 0:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
            losses.append(loss.item())
    return losses


def unscaled_in_every_micro_batch_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels)
            scaler.scale(loss / 4).backward()
            if (i + 1) % 4 == 0:
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                optimizer.zero_grad()
                scaler.update()
            losses.append(loss.item())
    return losses


_pair(
    unscaled_in_every_micro_batch_wrong,
    unscaled_in_every_micro_batch_mended,
    rule="scaler-timing",
    source="pytorch/pytorch!36601",
    what="Unscales and updates after each of 4 backward calls: earlier gradients are divided by 1024 again and again.",
)


def scaler_made_in_every_epoch_wrong() -> list[float]:
    model = _model(64, 16, 10).float()
    optimizer = SGD(model.parameters(), lr=0.001)
    losses = []
    for _ in range(3):
        scaler = GradScaler("cpu", init_scale=2.0**127)  # too large here, as 2.0**16 may be in float16
        for images, labels in _batches(4, size=64):
            loss = cross_entropy(model(images.float()), labels, reduction="sum")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


def scaler_made_in_every_epoch_mended() -> list[float]:
    model = _model(64, 16, 10).float()
    optimizer = SGD(model.parameters(), lr=0.001)
    losses = []
    scaler = GradScaler("cpu", init_scale=2.0**127)  # too large here, as 2.0**16 may be in float16
    for _ in range(3):
        for images, labels in _batches(4, size=64):
            loss = cross_entropy(model(images.float()), labels, reduction="sum")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


_pair(
    scaler_made_in_every_epoch_wrong,
    scaler_made_in_every_epoch_mended,
    rule="scaler-timing",
    source="conservationtechlab/animl-py#298",
    what="A new scaler in each epoch finds anew that its first factor overflows: 1 of 4 updates is skipped every time.",
)


def scaler_updated_twice_wrong() -> list[float]:
    first, second = _model(64, 10), _model(64, 16, 10)
    optimizers = [SGD(first.parameters(), lr=0.1), SGD(second.parameters(), lr=0.1)]
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    losses = []
    for images, labels in _batches(8):
        loss = cross_entropy(first(images), labels) + cross_entropy(second(images), labels)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def scaler_updated_twice_mended() -> list[float]:
    first, second = _model(64, 10), _model(64, 16, 10)
    optimizers = [SGD(first.parameters(), lr=0.1), SGD(second.parameters(), lr=0.1)]
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    losses = []
    for images, labels in _batches(8):
        loss = cross_entropy(first(images), labels) + cross_entropy(second(images), labels)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        losses.append(loss.item())
    return losses


_pair(
    scaler_updated_twice_wrong,
    scaler_updated_twice_mended,
    rule="scaler-timing",
    source="huggingface/accelerate#439",
    what="Updates after each of two optimizers: the factor doubles between them, and the second steps half as far.",
)


# scheduler-cadence (PyTorch warns of these, once: a schedule is stepped before the optimizer)


def warmup_in_micro_batches_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LinearLR(optimizer, start_factor=0.25, total_iters=4)  # counts updates
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(12)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
            losses.append(loss.item())
    return losses


def warmup_in_micro_batches_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LinearLR(optimizer, start_factor=0.25, total_iters=4)  # counts updates
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(12)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            losses.append(loss.item())
    return losses


_pair(
    warmup_in_micro_batches_wrong,
    warmup_in_micro_batches_mended,
    rule="scheduler-cadence",
    source="Lightning-AI/pytorch-lightning#1476",
    what="Steps the schedule in every micro-batch: a warm-up that was to take 4 updates is over after the first.",
)


def decay_in_micro_batches_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    updates, losses = 6, []
    scheduler = PolynomialLR(optimizer, total_iters=updates)
    batches = iter(_batches(4 * updates))
    while (batch := next(batches, None)) is not None:
        images, labels = batch
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        losses.append(loss.item())
        sync = len(losses) % 4 == 0
        if sync:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
    return losses


def decay_in_micro_batches_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    updates, losses = 6, []
    scheduler = PolynomialLR(optimizer, total_iters=updates)
    batches = iter(_batches(4 * updates))
    while (batch := next(batches, None)) is not None:
        images, labels = batch
        loss = cross_entropy(model(images), labels)
        (loss / 4).backward()
        losses.append(loss.item())
        sync = len(losses) % 4 == 0
        if sync:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return losses


_pair(
    decay_in_micro_batches_wrong,
    decay_in_micro_batches_mended,
    rule="scheduler-cadence",
    source="starVLA/starVLA!210",
    what="Steps a decay over 6 updates in every micro-batch: from the second update on the rate is 0.",
)


# held-graphs


def one_backward_per_window_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    running_loss, losses = 0, []
    for _ in range(2):
        for idx, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels) / 4
            running_loss += loss
            if (idx + 1) % 4 == 0:
                running_loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(running_loss.item())
                running_loss = 0
    return losses


def one_backward_per_window_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    running_loss, losses = 0, []
    for _ in range(2):
        for idx, (images, labels) in enumerate(_batches(8)):
            loss = cross_entropy(model(images), labels) / 4
            loss.backward()
            running_loss += loss.detach()
            if (idx + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
                losses.append(running_loss.item())
                running_loss = 0
    return losses


_pair(
    one_backward_per_window_wrong,
    one_backward_per_window_mended,
    rule="held-graphs",
    source="meta-pytorch/torchtune!1917",
    what="One backward for 4 micro-batches: the gradient is right, and the activations of all 4 are in memory at once.",
)


def running_loss_with_its_graphs_wrong() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        running_loss = 0.0
        for images, labels in _batches(8):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss
        losses.append(running_loss.item() / 8)
    return losses


def running_loss_with_its_graphs_mended() -> list[float]:
    model = _model(64, 16, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        running_loss = 0.0
        for images, labels in _batches(8):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        losses.append(running_loss / 8)
    return losses


_pair(
    running_loss_with_its_graphs_wrong,
    running_loss_with_its_graphs_mended,
    rule="held-graphs",
    source="BatsResearch/labelmodels#4",
    what="The sum for the log keeps the graph of every batch of the epoch: 8 graphs are alive at its end.",
)


# advice: batchnorm, low-precision-accumulation


def batchnorm_in_windows_wrong() -> list[float]:
    model = _model(64, 16, 10)
    model.insert(1, nn.BatchNorm1d(16, dtype=torch.float64))
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(16, size=4)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def batchnorm_in_windows_mended() -> list[float]:
    model = _model(64, 16, 10)
    model.insert(1, nn.LayerNorm(16, dtype=torch.float64))
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(16, size=4)):
            loss = cross_entropy(model(images), labels)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    batchnorm_in_windows_wrong,
    batchnorm_in_windows_mended,
    rule="batchnorm",
    source="giotto-ai/giotto-deep#75",
    what="Normalises over the 4 items of a micro-batch, not the 16 of the window: no large batch has this gradient.",
)


def added_up_in_bfloat16_wrong() -> list[float]:
    model = _model(64, 16, 10).bfloat16()
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(64, size=2)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(images.float()), labels)
            (loss / 32).backward()
            if (i + 1) % 32 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def added_up_in_bfloat16_mended() -> list[float]:
    model = _model(64, 16, 10).float()
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for i, (images, labels) in enumerate(_batches(64, size=2)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(images.float()), labels)
            (loss / 32).backward()
            if (i + 1) % 32 == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


_pair(
    added_up_in_bfloat16_wrong,
    added_up_in_bfloat16_mended,
    rule="low-precision-accumulation",
    source="linkedin/Liger-Kernel!830",
    what="Adds up 32 gradients in bfloat16, which has 8 binary digits: small addends are rounded away from the sum.",
)
