"""The judges of the exercises: right answers pass in whatever style, wrong ones are rejected by the name of their bug.

The wrong loops are those of public projects; `owner/repo#n` is an issue, `owner/repo!n` a pull request.
"""

import math
from functools import cache
from itertools import cycle, islice, product
from pathlib import Path

import pytest
import torch
from mutations import assert_mutations_are_judged_by_their_results
from torch import nn

from course_utils import mlp, windows
from course_utils.loops import items
from course_utils.practice.exercises import EXERCISES, judge

# Right answers: for each exercise the reference, then others.


def slope(f, w, h):
    rise = f(w + h) - f(w - h)
    return rise / (2 * h)


def slope_from_the_mean_of_two_sides(f, w, h):
    right = (f(w + h) - f(w)) / h
    left = (f(w) - f(w - h)) / h
    return 0.5 * (left + right)


def slope_from_four_points(f, w, h):
    return (8 * (f(w + h) - f(w - h)) - (f(w + 2 * h) - f(w - 2 * h))) / (12 * h)


def product_backward(a, b, out):
    a.grad += b.data * out.grad
    b.grad += a.data * out.grad


def product_backward_without_augmented_assignment(a, b, out):
    a.grad = a.grad + out.grad * b.data
    b.grad = b.grad + out.grad * a.data


def product_backward_in_a_loop(a, b, out):
    for one, other in ((b, a.data), (a, b.data)):
        one.grad += other * out.grad


def first_loop(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()


def train_zeroing_after_the_step(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def train_zeroing_between_forward_and_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss = loss_fn(model, batch)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        optimizer.step()


def dirty(model):
    names = []
    for name, p in model.named_parameters():
        if p.grad is not None and torch.count_nonzero(p.grad) > 0:
            names.append(name)
    return names


def dirty_in_one_line(model):
    return [name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()]


def dirty_by_comparison(model):
    held = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return [name for name, grad in held.items() if not torch.equal(grad, torch.zeros_like(grad))]


def accumulate_equal(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if number % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def accumulate_equal_in_two_loops(model, batches, loss_fn, optimizer, n):
    iterator = iter(batches)
    for _ in range(len(batches) // n):
        model.zero_grad()
        for _ in range(n):
            loss = loss_fn(model, next(iterator))
            loss.backward(torch.tensor(1 / n, dtype=loss.dtype))
        optimizer.step()


def accumulate(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = sum(items(batch) for batch in window)
        for batch in window:
            loss = loss_fn(model, batch) * (items(batch) / total)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulate_by_modulo(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        start = i - i % n
        total = sum(len(b) for b in batches[start : start + n])
        (loss_fn(model, batch) * len(batch) / total).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def accumulate_sums_and_divide_the_gradient(model, batches, loss_fn, optimizer, n):
    for start in range(0, len(batches), n):
        optimizer.zero_grad()
        seen = 0
        for batch in batches[start : start + n]:
            seen += len(batch)
            (loss_fn(model, batch) * len(batch)).backward()
        for p in model.parameters():
            p.grad /= seen
        optimizer.step()


def accumulate_with_a_queue(model, batches, loss_fn, optimizer, n):
    iterator = iter(batches)
    while window := list(islice(iterator, n)):
        optimizer.zero_grad()
        for batch in window:
            loss_fn(model, batch).mul(len(batch)).div(sum(map(len, window))).backward()
        optimizer.step()


def logged_loss(model, batches, loss_fn, optimizer, n):
    losses = []
    for window in windows(batches, n):
        optimizer.zero_grad()
        total = sum(len(batch) for batch in window)
        window_loss = 0.0
        for batch in window:
            loss = loss_fn(model, batch) * len(batch) / total
            loss.backward()
            window_loss += loss.item()
        optimizer.step()
        losses.append(window_loss)
    return losses


def logged_loss_in_tensors(model, batches, loss_fn, optimizer, n):
    losses = []
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        weights = torch.tensor([float(len(batch)) for batch in window], dtype=torch.float64)
        weights /= weights.sum()
        log = torch.zeros(len(window), dtype=torch.float64)
        for k, batch in enumerate(window):
            loss = loss_fn(model, batch)
            (loss * weights[k]).backward()
            log[k] = loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(log @ weights)
    return losses


def logged_loss_as_a_generator(model, batches, loss_fn, optimizer, n):
    for start in range(0, len(batches), n):
        total = logged = 0
        for batch in batches[start : start + n]:
            loss = loss_fn(model, batch) * len(batch)
            loss.backward()
            total += len(batch)
            logged += loss.item()
        for p in model.parameters():
            p.grad /= total
        optimizer.step()
        optimizer.zero_grad()
        yield logged / total


RIGHT = {
    "slope": (slope, slope_from_the_mean_of_two_sides, slope_from_four_points),
    "product_backward": (
        product_backward,
        product_backward_without_augmented_assignment,
        product_backward_in_a_loop,
    ),
    "first_loop": (first_loop, train, train_zeroing_after_the_step, train_zeroing_between_forward_and_backward),
    "train": (train, train_zeroing_after_the_step, train_zeroing_between_forward_and_backward),
    "dirty": (dirty, dirty_in_one_line, dirty_by_comparison),
    "accumulate_equal": (accumulate_equal, accumulate_equal_in_two_loops, accumulate),
    "accumulate": (
        accumulate,
        accumulate_by_modulo,
        accumulate_sums_and_divide_the_gradient,
        accumulate_with_a_queue,
    ),
    "logged_loss": (logged_loss, logged_loss_in_tensors, logged_loss_as_a_generator),
}
EVERY_RIGHT = [pytest.param(name, answer, id=f"{name}-{answer.__name__}") for name in RIGHT for answer in RIGHT[name]]


def test_every_exercise_is_tested_here_or_in_a_file_of_its_own():
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_exercises_*.py")]
    for name in EXERCISES:
        assert name in RIGHT or any(f'"{name}"' in source for source in sources), name


@pytest.mark.parametrize(("exercise", "answer"), EVERY_RIGHT)
def test_a_right_answer_passes(exercise, answer):
    verdict = judge(exercise, answer)
    assert verdict.passed, verdict
    assert verdict.message


@pytest.mark.parametrize("exercise", RIGHT)
def test_a_right_answer_passes_where_float64_is_the_default(exercise):
    torch.set_default_dtype(torch.float64)
    assert judge(exercise, RIGHT[exercise][0]).passed


# Wrong answers that people write, each with the name of its bug.

WRONG = []


def wrong(exercise, bug, *sources):
    """Puts the decorated answer on the list; `sources` are the public loops that had this bug."""

    def keep(answer):
        WRONG.append(pytest.param(exercise, answer, bug, id=f"{exercise}-{answer.__name__}-{'-'.join(sources)}"))
        return answer

    return keep


wrong("slope", "one-sided")(lambda f, w, h: (f(w + h) - f(w)) / h)
wrong("slope", "half-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / h)
wrong("slope", "double-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / (4 * h))
wrong("slope", "no-run")(lambda f, w, h: f(w + h) - f(w - h))
wrong("slope", "no-run")(lambda f, w, h: (f(w + h) - f(w - h)) / 2 * h)
wrong("slope", "wrong-sign")(lambda f, w, h: (f(w - h) - f(w + h)) / (2 * h))
wrong("dirty", "crashes-on-none")(lambda model: [name for name, p in model.named_parameters() if p.grad.any()])
wrong("dirty", "crashes-on-none")(
    lambda model: [name for name, p in model.named_parameters() if torch.count_nonzero(p.grad)]
)
wrong("dirty", "zeros-are-clean")(lambda model: [name for name, p in model.named_parameters() if p.grad is not None])
wrong("dirty", "signs-cancel")(
    lambda model: [name for name, p in model.named_parameters() if p.grad is not None and p.grad.sum() != 0]
)
wrong("dirty", "misses-nan")(
    lambda model: [name for name, p in model.named_parameters() if p.grad is not None and p.grad.norm() > 0]
)
wrong("dirty", "misses-small")(
    lambda model: [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.norm() < 1e-8]
)
wrong("dirty", "misses-gradients")(lambda model: [])
wrong("dirty", "wrong-type")(lambda model: any(p.grad is not None for p in model.parameters()))


@wrong("product_backward", "assigns")
def stores(a, b, out):
    a.grad = b.data * out.grad
    b.grad = a.data * out.grad


@wrong("product_backward", "assigns")
def forgets_that_both_may_be_one(a, b, out):
    before_a, before_b = a.grad, b.grad
    a.grad = before_a + b.data * out.grad
    b.grad = before_b + a.data * out.grad


@wrong("product_backward", "swapped")
def takes_its_own_factor(a, b, out):
    a.grad += a.data * out.grad
    b.grad += b.data * out.grad


@wrong("product_backward", "no-chain-rule")
def ignores_what_comes_after(a, b, out):
    a.grad += b.data
    b.grad += a.data


@wrong("dirty", "changes-gradients")
def clears_what_it_sees(model):
    names = dirty(model)
    model.zero_grad()
    return names


@wrong("train", "stale-gradients", "stackoverflow-60335387", "wenet-e2e/wekws#72", "meta-pytorch/torchforge!71")
def never_zeroes(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()


@wrong("train", "stale-gradients", "pytorch/pytorch#47175")
def zeroes_once_per_epoch(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()


@wrong("train", "stale-gradients", "karpathy/llm.c!548")
def zeroes_only_after_the_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@wrong("train", "discarded-gradients", "sacmehta/EdgeNets#14", "gaozhihan/PreDiff!33")
def zeroes_between_backward_and_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        optimizer.zero_grad()
        optimizer.step()


@wrong("train", "empty-step")
def steps_before_the_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.step()
        optimizer.zero_grad()
        loss_fn(model, batch).backward()


@wrong("train", "empty-step")
def has_no_backward(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch)
        optimizer.step()


@wrong("train", "irregular-window")
def steps_once_per_epoch(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss_fn(model, batch).backward()
    optimizer.step()


@wrong("train", "leftover-gradients", "huggingface/transformers#2995")
def has_no_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()


@wrong("train", "held-graphs")
def keeps_the_graph(model, batches, loss_fn, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward(retain_graph=True)
        optimizer.step()


for answer, bug in (
    (never_zeroes, "stale-gradients"),
    (zeroes_once_per_epoch, "stale-gradients"),
    (zeroes_between_backward_and_step, "discarded-gradients"),
    (steps_before_the_backward, "empty-step"),
    (has_no_backward, "empty-step"),
    (steps_once_per_epoch, "irregular-window"),
    (has_no_step, "leftover-gradients"),
    (keeps_the_graph, "held-graphs"),
):
    wrong("first_loop", bug)(answer)


@wrong("accumulate_equal", "loss-scale", "karpathy/nanoGPT#206")
def only_adds(model, batches, loss_fn, optimizer, n):
    accumulate_equal(model, batches, lambda model, batch: loss_fn(model, batch) * n, optimizer, n)


@wrong("accumulate_equal", "stale-gradients", "karpathy/llm.c!548")
def trusts_the_model_to_be_clean(model, batches, loss_fn, optimizer, n):
    modulo_without_a_tail(model, batches, loss_fn, optimizer, n)


@wrong("accumulate_equal", "discarded-gradients", "HorizonRobotics/alf!1788")
def zeroes_before_every_backward(model, batches, loss_fn, optimizer, n):
    zeroes_at_the_top_of_the_loop(model, batches, loss_fn, optimizer, n)


@wrong("accumulate_equal", "irregular-window", "Lightning-Fabric-docs-and-no_backward_sync-docstring")
def steps_where_i_modulo_n_is_0(model, batches, loss_fn, optimizer, n):
    fabric_steps_where_i_modulo_n_is_0(model, batches, loss_fn, optimizer, n)


@wrong(
    "accumulate", "leftover-gradients", "timoschick/pet#36", "tomhosking/torchseq#8", "huggingface/transformers#2995"
)
def modulo_without_a_tail(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "leftover-gradients", "ultralytics/ultralytics!11217")
def zeroes_the_tail_at_the_start_of_an_epoch(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    modulo_without_a_tail(model, batches, loss_fn, optimizer, n)


@wrong("accumulate", "leftover-gradients", "huggingface/transformers#22082", "meta-pytorch/torchtune!2745", "fastai")
def counts_on_over_the_edge_of_an_epoch(model, batches, loss_fn, optimizer, n):
    for batch in batches:
        (loss_fn(model, batch) / n).backward()
        optimizer.seen = getattr(optimizer, "seen", 0) + 1
        if optimizer.seen % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong(
    "accumulate",
    "loss-scale",
    "huggingface/accelerate",
    "Lightning-AI/pytorch-lightning#19987",
    "huggingface/transformers!39659",
    "modelscope/ms-swift!10084",
    "jingyaogong/minimind#749",
    "LibreYOLO/libreyolo!857",
)
def steps_at_the_last_but_divides_by_n(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "irregular-window", "Lightning-Fabric-docs-and-no_backward_sync-docstring")
def fabric_steps_where_i_modulo_n_is_0(model, batches, loss_fn, optimizer, n):
    for iteration, batch in enumerate(batches):
        is_accumulating = iteration % n != 0
        loss_fn(model, batch).backward()
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "irregular-window", "rasbt/LLMs-from-scratch#299")
def steps_first_and_divides(model, batches, loss_fn, optimizer, n):
    for batch_idx, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if batch_idx % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "irregular-window", "rasbt/LLMs-from-scratch#299")
def steps_first_and_last(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if not i % n or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "irregular-window", "Gen-Verse/dLLM-RL#7")
def counts_from_1_and_adds_1(model, batches, loss_fn, optimizer, n):
    for step, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if (step + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "irregular-window", "NVIDIA/DeepLearningExamples#1185")
def has_an_extra_first_step(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if i == 0 or (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "irregular-window", "huggingface/accelerate#435")
def has_the_condition_inverted(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n != 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "irregular-window", "thunlp/OpenPrompt#106", "eriklindernoren/PyTorch-YOLOv3!313")
def steps_outside_the_if(model, batches, loss_fn, optimizer, n):
    for batch in batches:
        (loss_fn(model, batch) / n).backward()
        optimizer.step()
        optimizer.zero_grad()


@wrong("accumulate", "irregular-window")
def steps_in_the_inner_loop(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
            optimizer.step()


@wrong(
    "accumulate", "discarded-gradients", "bytetriper/RAE#67", "HorizonRobotics/alf!1788", "dscripka/openWakeWord#316"
)
def zeroes_at_the_top_of_the_loop(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        optimizer.zero_grad()
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()


@wrong("accumulate", "discarded-gradients", "tatsu-lab/alpaca_farm!58")
def zeroes_the_model_every_micro_batch(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
        model.zero_grad()


@wrong("accumulate", "discarded-gradients", "gaozhihan/PreDiff!33")
def zeroes_before_the_step(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            optimizer.zero_grad()
            optimizer.step()


@wrong("accumulate", "stale-gradients", "yastrebksv/TennisCourtDetector#7", "tenstorrent/tt-blacksmith!711")
def accumulates_and_never_zeroes(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()


@wrong("accumulate", "stale-gradients", "pytorch/pytorch#47175")
def accumulates_and_zeroes_once_per_epoch(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    accumulates_and_never_zeroes(model, batches, loss_fn, optimizer, n)


@wrong("accumulate", "stale-gradients", "karpathy/llm.c!548")
def is_right_but_from_a_dirty_start(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        for batch in window:
            (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
        optimizer.step()
        optimizer.zero_grad()


@wrong(
    "accumulate",
    "loss-scale",
    "karpathy/nanoGPT#206",
    "fastai/fastai#3023",
    "hirofumi0810/neural_sp#168",
    "agokrani/distillKitPlus#5",
    "Lightning-AI/lit-llama!357",
)
def does_not_divide(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            loss_fn(model, batch).backward()
        optimizer.step()


@wrong("accumulate", "loss-scale", "verl-project/verl!436")
def divides_after_the_backward(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            loss = loss_fn(model, batch)
            loss.backward()
            loss = loss / len(window)
        optimizer.step()


@wrong("accumulate", "loss-scale", "huggingface/transformers#45305", "huggingface/accelerate#3877")
def divides_twice(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window) / len(window)).backward()
        optimizer.step()


@wrong("accumulate", "token-weights", "huggingface/trl#2175", "meta-pytorch/torchtune!1875", "pytorch/torchtitan!2206")
def takes_the_mean_of_means(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
        optimizer.step()


@wrong("accumulate", "held-graphs", "meta-pytorch/torchtune!1917", "google/brax!152")
def adds_the_losses_for_one_backward(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        total = sum(map(len, window))
        optimizer.zero_grad()
        sum(loss_fn(model, batch) * (len(batch) / total) for batch in window).backward()
        optimizer.step()


@wrong("accumulate", "held-graphs")
def makes_one_large_batch(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        loss_fn(model, torch.cat(window)).backward()
        optimizer.step()


def logger(log):
    """A right training loop whose log of a window is `log(its losses, the sizes of its micro-batches, n)`."""

    def answer(model, batches, loss_fn, optimizer, n):
        logged = []
        for window in windows(batches, n):
            sizes, losses = list(map(len, window)), []
            for batch in window:
                loss = loss_fn(model, batch)
                (loss * len(batch) / sum(sizes)).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            logged.append(log(losses, sizes, n))
        return logged

    return answer


wrong("logged_loss", "last-only")(logger(lambda losses, sizes, n: losses[-1]))
wrong(
    "logged_loss", "last-only", "pytorch-ignite", "Lightning-AI/pytorch-lightning#2569", "deepspeedai/DeepSpeed#1107"
)(logger(lambda losses, sizes, n: losses[-1] / n))
wrong("logged_loss", "divided-by-n")(logger(lambda losses, sizes, n: sum(losses) / n))
wrong("logged_loss", "divided-by-n", "verl-project/verl!436")(logger(lambda losses, sizes, n: sum(losses) / n / n))
wrong("logged_loss", "not-divided", "huggingface/transformers#11919")(logger(lambda losses, sizes, n: sum(losses)))
wrong("logged_loss", "token-weights")(logger(lambda losses, sizes, n: sum(losses) / len(losses)))
wrong("logged_loss", "wrong-type")(lambda *loop: sum(logged_loss(*loop)))
wrong("logged_loss", "leftover-gradients")(lambda *loop: logged_loss(*loop)[:1])
wrong("logged_loss", "not-attempted")(lambda *loop: [])


@wrong("logged_loss", "per-micro-batch")
def logs_every_micro_batch(model, batches, loss_fn, optimizer, n):
    logged_loss(model, batches, loss_fn, optimizer, n)
    return [loss_fn(model, batch).item() for batch in batches]


@wrong("logged_loss", "not-reset")
def never_resets_the_sum(model, batches, loss_fn, optimizer, n):
    losses = logged_loss(model, batches, loss_fn, optimizer, n)
    return [sum(losses[: k + 1]) for k in range(len(losses))]


@wrong("logged_loss", "discarded-gradients")
def logs_rightly_and_trains_wrongly(model, batches, loss_fn, optimizer, n):
    losses = []
    for window in windows(batches, n):
        total, window_loss = sum(map(len, window)), 0.0
        for batch in window:
            optimizer.zero_grad()
            loss = loss_fn(model, batch) * len(batch) / total
            loss.backward()
            window_loss += loss.item()
        optimizer.step()
        losses.append(window_loss)
    return losses


@pytest.mark.parametrize(("exercise", "answer", "bug"), WRONG)
def test_a_wrong_answer_is_rejected_by_the_name_of_its_bug(exercise, answer, bug):
    verdict = judge(exercise, answer)
    assert (verdict.passed, verdict.bug) == (False, bug), verdict.message
    assert verdict.message


# Junk.


def raises(*_):
    raise KeyError("no such thing")


def leaves_python(*_):
    raise SystemExit(1)


def calls_itself(*arguments):
    return calls_itself(*arguments)


class Unprintable:
    def __call__(self, *_):
        return self

    def __repr__(self):
        raise RuntimeError("not even this")


JUNK = {
    "None": None,
    "a number": 3,
    "a text": "def train(): ...",
    "something that cannot be printed": [Unprintable()],
    "no arguments": lambda: 0,
    "returns None": lambda *_: None,
    "returns ...": lambda *_: ...,
    "returns a text": lambda *_: "text",
    "returns nan": lambda *_: math.nan,
    "returns a complex number": lambda *_: 1j,
    "returns two numbers": lambda *_: torch.ones(2),
    "returns what cannot be printed": Unprintable(),
    "returns a list of junk": lambda *_: [None, "x"],
    "a class": dict,
    "a builtin": print,
    "raises": raises,
    "leaves Python": leaves_python,
    "calls itself for ever": calls_itself,
    "turns gradients off": lambda *_: torch.set_grad_enabled(False),
    "empties the batches": lambda *a: a[1].clear(),
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_junk_is_rejected_never_raises_and_leaves_torch_as_it_was(exercise):
    before = torch.get_rng_state()
    for what, answer in JUNK.items():
        verdict = judge(exercise, answer)
        assert not verdict.passed, what
        assert verdict.bug, what
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before)


def test_an_untouched_stub_is_not_attempted():
    for exercise in EXERCISES:
        assert judge(exercise, lambda *_: None).bug == "not-attempted", exercise


def test_the_first_loop_is_judged_in_the_words_of_notebook_00():
    for answer in (never_zeroes, zeroes_between_backward_and_step, has_no_step, steps_once_per_epoch):
        message = judge("first_loop", answer).message
        assert message.startswith("batches of [")
        assert "micro-batch" not in message
    assert judge("first_loop", never_zeroes).message.endswith("gradients of earlier updates (batches [1]).")
    assert judge("first_loop", lambda *_: None).message == "no backward and no step has run yet."
    assert not judge("train", first_loop).passed, "what was there before is asked about in notebook 02"


def test_an_exercise_that_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match="no exercise is called 'slop', only first_loop, slope"):
        judge("slop", slope)


def test_judging_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    judge("accumulate", lambda *_: torch.rand(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_judging_gives_the_same_verdict_every_time():
    assert judge("accumulate", does_not_divide) == judge("accumulate", does_not_divide)


# Mutations. Whether one changes a result is found out here without the judge: on random data, against the reference.


class Number:
    def __init__(self, data, grad):
        self.data, self.grad = data, grad


def outcomes_of_slope(answer):
    for f, w, h in product((lambda w: w**4 - w, math.sin, math.exp), (-0.7, 0.0, 1.3), (1e-1, 1e-2)):
        yield lambda f=f, w=w, h=h: [answer(f, w, h)]


def outcomes_of_product_backward(answer):
    numbers = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).tolist()
    for x, y, upstream, one, two, _ in numbers:

        def run(a, b, out):
            answer(a, b, out)
            return [a.data, a.grad, b.data, b.grad, out.data, out.grad]

        yield lambda x=x, y=y, u=upstream, p=one, q=two: run(Number(x, p), Number(y, q), Number(x * y, u))
        shared = Number(x, one)
        yield lambda x=x, u=upstream, shared=shared: run(shared, shared, Number(x * x, u))


def outcomes_of_dirty(answer):
    choices = (None, 0.0, 1.0, -1e-9, math.nan, math.inf)
    for first, second, first_entry in product(choices, choices, choices[1:]):
        model = mlp(1, 2).double()
        for p, fill in zip(model.parameters(), (first, second), strict=True):
            if fill is not None:
                p.grad = torch.full_like(p, fill)
                p.grad[0] = first_entry
        yield lambda model=model: answer(model)


def outcomes_of_loop(answer, n_values, dirty_starts, takes_n=True, sizes=((2,) * 6, (3, 1, 2, 4, 1))):
    for (n, some_sizes), is_dirty in zip(product(n_values, sizes), cycle(dirty_starts), strict=False):
        yield lambda n=n, s=some_sizes, is_dirty=is_dirty: trained(answer, n, s, is_dirty, takes_n)


def trained(answer, n, sizes, is_dirty, takes_n):
    """What is returned in two epochs, and all parameters after them."""
    generator = torch.Generator().manual_seed(n)
    torch.manual_seed(n)
    model = mlp(3, 4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    batches = [torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in sizes]
    if is_dirty:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
    returned = []
    for _ in range(2):
        result = answer(model, batches, squares, optimizer, *([n] if takes_n else []))
        returned += [] if result is None else [float(loss) for loss in result]
    return returned + torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def squares(model, batch):
    return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])


OUTCOMES = {
    "slope": outcomes_of_slope,
    "product_backward": outcomes_of_product_backward,
    "dirty": outcomes_of_dirty,
    "first_loop": lambda answer: outcomes_of_loop(answer, (1, 1), (False,), takes_n=False),
    "train": lambda answer: outcomes_of_loop(answer, (1, 1), (True, False), takes_n=False),
    "accumulate_equal": lambda answer: outcomes_of_loop(answer, (2, 4, 3, 1), (False, True), sizes=((2,) * 12,)),
    "accumulate": lambda answer: outcomes_of_loop(answer, (2, 3, 4, 1, 9), (True, False, False)),
    "logged_loss": lambda answer: outcomes_of_loop(answer, (2, 3, 4, 1, 9), (False,)),
}


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__


@cache
def right_outcomes(exercise, reference):
    return [outcome(call) for call in OUTCOMES[exercise](reference)]


def same(got, want):
    if got == want or not (isinstance(got, list) and isinstance(want, list) and len(got) == len(want)):
        return got == want
    try:
        return all(math.isclose(g, w, rel_tol=1e-9, abs_tol=1e-10) for g, w in zip(got, want, strict=True))
    except TypeError:
        return False


def changes_a_result(exercise, answer, reference):
    pairs = zip(OUTCOMES[exercise](answer), right_outcomes(exercise, reference), strict=True)
    return any(not same(outcome(call), want) for call, want in pairs)


def large_batches(model, batches, loss_fn, optimizer, n=1):
    losses = []
    for start in range(0, len(batches), n):
        optimizer.zero_grad()
        loss = loss_fn(model, torch.cat(batches[start : start + n]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def large_batches_without_a_log(*loop):
    large_batches(*loop)


LOOPS = [
    param
    for param in EVERY_RIGHT
    if param.values[0] in ("first_loop", "train", "accumulate_equal", "accumulate", "logged_loss")
]


@pytest.mark.parametrize(("exercise", "answer"), LOOPS)
def test_a_right_loop_agrees_with_large_batches(exercise, answer):
    reference = large_batches if exercise == "logged_loss" else large_batches_without_a_log
    assert not changes_a_result(exercise, answer, reference)


REFERENCES = [(exercise, answers[0]) for exercise, answers in RIGHT.items()]


@pytest.mark.mutations
@pytest.mark.parametrize(("exercise", "answer"), [*REFERENCES, ("accumulate", accumulate_by_modulo)])
def test_a_mutation_is_rejected_if_and_only_if_it_changes_a_result(exercise, answer):
    assert_mutations_are_judged_by_their_results(
        exercise, answer, lambda mutant: changes_a_result(exercise, mutant, answer)
    )
