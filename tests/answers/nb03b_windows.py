"""Answers to "accumulate", over windows that may be short, of micro-batches of any size."""

from itertools import islice
from random import Random

import torch
from torch import nn

from answers import right, wrong
from course_utils import windows
from course_utils.loops import items


@right("accumulate")
def accumulate(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = sum(items(batch) for batch in window)
        for batch in window:
            loss = loss_fn(model, batch) * (items(batch) / total)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@right("accumulate")
def accumulate_by_modulo(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        start = i - i % n
        total = sum(len(b) for b in batches[start : start + n])
        (loss_fn(model, batch) * len(batch) / total).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@right("accumulate")
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


@right("accumulate")
def accumulate_with_a_queue(model, batches, loss_fn, optimizer, n):
    iterator = iter(batches)
    while window := list(islice(iterator, n)):
        optimizer.zero_grad()
        for batch in window:
            loss_fn(model, batch).mul(len(batch)).div(sum(map(len, window))).backward()
        optimizer.step()


@right("accumulate")
def accumulate_with_a_closure(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):

        def closure(window=window):
            optimizer.zero_grad()
            total, logged = sum(map(len, window)), 0.0
            for batch in window:
                loss = loss_fn(model, batch) * len(batch) / total
                loss.backward()
                logged += loss.detach()
            return logged

        optimizer.step(closure)


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


# Loops over windows that are right but for one thing.


def loop(groups=windows, share=lambda batch, window, n: len(batch) / sum(map(len, window)), end=None, **backward):
    """A right loop but for its windows, the share of a micro-batch, what comes at the end, or backward's options."""

    def answer(model, batches, loss_fn, optimizer, n):
        for window in groups(batches, n):
            optimizer.zero_grad()
            for batch in window:
                loss = loss_fn(model, batch) * share(batch, window, n)
                loss.backward(**backward)
            optimizer.step()
        if end:
            end(model, batches)

    return answer


def sorted_by_size(batches, n):
    return windows(sorted(batches, key=len), n)


# Which micro-batches are in a window.
OTHER_WINDOWS = {
    "wrong-batches": [
        lambda batches, n: windows(reversed(batches), n),
        lambda batches, n: reversed(list(windows(batches, n))),
        lambda batches, n: windows(Random(3).sample(batches, len(batches)), n),
        sorted_by_size,
        lambda batches, n: [batches[k :: -(-len(batches) // n)] for k in range(-(-len(batches) // n))],
        lambda batches, n: [batches[:n] for _ in windows(batches, n)],
    ],
    "missing-backward": [lambda batches, n: [window[-1:] for window in windows(batches, n)]],
    "leftover-gradients": [
        lambda batches, n: [window for window in windows(batches, n) if len(window) == n],
        lambda batches, n: [batches[i : i + n] for i in range(0, len(batches) - n + 1, n)],
        lambda batches, n: zip(*[iter(batches)] * n, strict=False),
        lambda batches, n: list(windows(batches, n))[:-1],
    ],
    "irregular-window": [
        lambda batches, n: windows(batches, n + 1),
        lambda batches, n: windows(batches, max(n - 1, 1)),
        lambda batches, n: [batches],
        lambda batches, n: [batches[i : i + n] for i in range(len(batches))],
        lambda batches, n: list(windows(batches, n))[:1],
        lambda batches, n: [window for window in windows(batches, n) for _ in range(2)],
        lambda batches, n: [batches[i : i + n + 1] for i in range(0, len(batches), n)],
    ],
}
for bug, changes in OTHER_WINDOWS.items():
    for change in changes:
        wrong("accumulate", bug)(loop(change))

# How much a micro-batch counts.
OTHER_SHARES = {
    "token-weights": [
        lambda batch, window, n: len(window[0]) / sum(map(len, window)),
    ],
    "low-precision": [
        lambda batch, window, n: round(len(batch) / sum(map(len, window)), 3),
        lambda batch, window, n: torch.tensor(len(batch) / sum(map(len, window))).half(),
    ],
}
for bug, changes in OTHER_SHARES.items():
    for change in changes:
        wrong("accumulate", bug)(loop(share=change))

wrong("accumulate", "held-graphs")(loop(retain_graph=True))
wrong("accumulate", "changed-input", says="has 0 entries afterwards instead of 6")(
    loop(end=lambda model, batches: batches.clear())
)
wrong("accumulate", "changed-input")(loop(end=lambda model, batches: batches.sort(key=lambda batch: -int(batch[0]))))
wrong("accumulate", "raises")(loop(share=lambda batch, window, n: len(batch) / (len(window) - n)))
wrong("accumulate", "not-attempted")(loop(groups=lambda batches, n: []))


@wrong("accumulate", "not-reset", says="since your loop ran two epochs of 3")
def never_resets_its_counter(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    count = 0
    for batch in batches:
        (loss_fn(model, batch) / n).backward()
        count = count + 1
        if count == n:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "not-reset")
def compares_instead_of_taking_the_remainder(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if i + 1 == n:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulate", "missing-backward", says="micro-batches [1, 3, 5] of an epoch never get a backward pass")
def has_its_backward_outside_the_inner_loop(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            loss = loss_fn(model, batch) * len(batch) / sum(map(len, window))
        loss.backward()
        optimizer.step()


@wrong("accumulate", "discarded-gradients")
def zeroes_after_the_first_backward_of_a_window(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        window = batches[i - i % n : i - i % n + n]
        (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
        if i % n == 0:
            optimizer.zero_grad()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()


@wrong("accumulate", "changed-input")
def takes_the_micro_batches_out_of_the_callers_list(model, batches, loss_fn, optimizer, n):
    while batches:
        window = [batches.pop(0) for _ in range(min(n, len(batches)))]
        accumulate(model, window, loss_fn, optimizer, n)


@wrong("accumulate", "empty-step")
def swallows_every_error(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            try:  # noqa: SIM105
                loss_fn(model, batch).backwards()
            except:  # noqa: E722
                pass
        optimizer.step()


@wrong("accumulate", "wrong-type", says="none of its lines has run")
def is_a_generator(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            loss = loss_fn(model, batch) * len(batch) / sum(map(len, window))
            loss.backward()
            yield loss.item()
        optimizer.step()


@wrong("accumulate", "wrong-value")
def clips_as_well(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@wrong("accumulate", "wrong-value")
def zeroes_the_first_parameter_only(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        next(model.parameters()).grad = None
        for batch in window:
            (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
        optimizer.step()


@wrong("accumulate", "leftover-gradients")
def updates_by_hand(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= optimizer.param_groups[0]["lr"] * p.grad


@wrong("accumulate", "stale-gradients", says="batches of")
def wrong_where_n_is_1(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in windows(batches, n):
        for batch in window:
            (loss_fn(model, batch) * (len(batch) / sum(map(len, window)))).backward()
        optimizer.step()
        if n > 1:
            optimizer.zero_grad()


@wrong("accumulate", "loss-scale", says="N = 100")
def wrong_where_the_epoch_is_shorter_than_n(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        total = sum(map(len, window)) if n <= len(batches) else n
        for batch in window:
            (loss_fn(model, batch) * (len(batch) / total)).backward()
        optimizer.step()
