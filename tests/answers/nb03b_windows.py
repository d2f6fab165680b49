"""Answers to "accumulate", over windows that may be short, of micro-batches of any size."""

from itertools import islice

import torch

from answers import outcomes, right, wrong
from answers.loops import large_batches, outcomes_of_loop
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


@right("accumulate")
def accumulate_with_weights_of_a_tensor(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        counts = torch.tensor([len(batch) for batch in window])
        for batch, share in zip(window, counts / counts.sum(), strict=True):  # in float32
            (loss_fn(model, batch) * share).backward()
        optimizer.step()


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


@outcomes("accumulate", reference=large_batches, mutate=[accumulate_by_modulo])
def outcomes_of_accumulate(answer):
    return outcomes_of_loop(answer, (2, 3, 4, 1, 9), (True, False, False))
