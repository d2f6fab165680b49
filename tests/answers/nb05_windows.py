"""Answers to "accumulate", over windows that may be short, of micro-batches of any size."""

import torch

from answers import edited, right, wrong
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
def accumulate_without_backward(model, batches, loss_fn, optimizer, n):
    weights = [p for p in model.parameters() if p.requires_grad]
    for window in windows(batches, n):
        sums, count = [torch.zeros_like(p) for p in weights], 0
        for batch in window:
            for total, grad in zip(sums, torch.autograd.grad(loss_fn(model, batch), weights), strict=True):
                total += grad * len(batch)
            count += len(batch)
        for p, total in zip(weights, sums, strict=True):
            p.grad = total / count
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
def accumulate_a_running_mean(model, batches, loss_fn, optimizer, n):
    seen = 0
    for i, batch in enumerate(batches):
        if i % n == 0:
            seen = 0
            for p in model.parameters():
                p.grad = None
        for p in model.parameters():
            if p.grad is not None:
                p.grad *= seen / (seen + len(batch))
        seen += len(batch)
        (loss_fn(model, batch) * (len(batch) / seen)).backward()
        if i % n == n - 1 or i == len(batches) - 1:
            optimizer.step()


def in_both(bug, *sources, says=""):
    """The function is wrong in "accumulate", and in "accumulate_equal" by the same name."""

    def keep(answer):
        wrong("accumulate_equal", bug)(answer)
        return wrong("accumulate", bug, *sources, says=says)(answer)

    return keep


# One loop that asks for the remainder. A right one, with the tail, is "accumulate_by_modulo".


@wrong(
    "accumulate", "leftover-gradients", "timoschick/pet#36", "tomhosking/torchseq#8", "huggingface/transformers#2995"
)
def without_a_tail(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


ZERO = "optimizer.zero_grad()"
STEP = "optimizer.step()"
ZERO_FIRST = ("    for", f"    {ZERO}\n    for")
WITH_THE_LAST = ("% n == 0", "% n == 0 or i + 1 == len(batches)")
zeroes_at_the_top = edited(without_a_tail, (ZERO, "pass"), ("(loss_fn", f"{ZERO}; (loss_fn"), WITH_THE_LAST)
fabric_steps_where_i_modulo_n_is_0 = edited(without_a_tail, (" / n", ""), ("(i + 1)", "i"))

for bug, sources, answer in (
    ("leftover-gradients", "ultralytics/ultralytics!11217", edited(without_a_tail, ZERO_FIRST)),
    ("irregular-window", "Lightning-Fabric-docs-and-no_backward_sync-docstring", fabric_steps_where_i_modulo_n_is_0),
    ("irregular-window", "rasbt/LLMs-from-scratch#299", edited(without_a_tail, ("(i + 1)", "i"))),
    ("irregular-window", "huggingface/accelerate#435", edited(without_a_tail, ("==", "!="))),
    ("discarded-gradients", "bytetriper/RAE#67 HorizonRobotics/alf!1788 dscripka/openWakeWord#316", zeroes_at_the_top),
    (
        "discarded-gradients",
        "tatsu-lab/alpaca_farm!58",
        edited(without_a_tail, (f"            {ZERO}", "        model.zero_grad()")),
    ),
    (
        "leftover-gradients",
        "huggingface/transformers#22082 meta-pytorch/torchtune!2745 fastai",
        edited(
            without_a_tail,
            ("if (i + 1)", "optimizer.seen = getattr(optimizer, 'seen', 0) + 1\n        if optimizer.seen"),
        ),
    ),
    (
        "loss-scale",
        "huggingface/accelerate Lightning-AI/pytorch-lightning#19987 huggingface/transformers!39659 "
        "modelscope/ms-swift!10084 jingyaogong/minimind#749 LibreYOLO/libreyolo!857",
        edited(without_a_tail, WITH_THE_LAST),
    ),
):
    wrong("accumulate", bug, *sources.split())(answer)

for bug, sources, *changes in (
    ("irregular-window", "Gen-Verse/dLLM-RL#7", ("i + 1", "i + 2")),
    ("irregular-window", "NVIDIA/DeepLearningExamples#1185", ("if", "if i == 0 or")),
    ("irregular-window", "thunlp/OpenPrompt#106 eriklindernoren/PyTorch-YOLOv3!313", ("(i + 1) % n == 0", "True")),
    ("discarded-gradients", "gaozhihan/PreDiff!33", (f"{STEP}\n            {ZERO}", f"{ZERO}; {STEP}")),
    (
        "stale-gradients",
        "yastrebksv/TennisCourtDetector#7 tenstorrent/tt-blacksmith!711",
        (ZERO, "pass"),
        WITH_THE_LAST,
    ),
    ("stale-gradients", "pytorch/pytorch#47175", (ZERO, "pass"), WITH_THE_LAST, ZERO_FIRST),
):
    in_both(bug, *sources.split())(edited(without_a_tail, *changes))
in_both("not-reset", says="since the check runs two epochs of 3")(
    edited(without_a_tail, ("(i + 1) % n == 0", "i + 1 == n"))
)


# The solution, with something changed: which micro-batches are in a window.


def popped(batches, n):
    while batches:
        yield [batches.pop(0) for _ in batches[:n]]


WINDOWS = "windows(batches, n)"
for bug, others in (
    ("wrong-batches", "windows(reversed(batches), n)"),
    ("wrong-batches", "reversed(list(windows(batches, n)))"),
    ("wrong-batches", "windows(batches[1:] + batches[:1], n)"),
    ("wrong-batches", "[batches[k :: -(-len(batches) // n)] for k in range(-(-len(batches) // n))]"),
    ("wrong-batches", "[batches[:n] for _ in windows(batches, n)]"),
    ("missing-backward", "[window[-1:] for window in windows(batches, n)]"),
    ("irregular-window", "windows(batches, n + 1)"),
    ("irregular-window", "windows(batches, max(n - 1, 1))"),
    ("irregular-window", "[batches]"),
    ("irregular-window", "[batches[i : i + n] for i in range(len(batches))]"),
    ("irregular-window", "list(windows(batches, n))[:1]"),
    ("irregular-window", "[window for window in windows(batches, n) for _ in range(2)]"),
    ("irregular-window", "[batches[i : i + n + 1] for i in range(0, len(batches), n)]"),
    ("changed-input", "popped(batches, n)"),
):
    in_both(bug)(edited(accumulate, (WINDOWS, others)))
for bug, others in (
    ("wrong-batches", "windows(sorted(batches, key=len), n)"),
    ("leftover-gradients", "[window for window in windows(batches, n) if len(window) == n]"),
    ("leftover-gradients", "[batches[i : i + n] for i in range(0, len(batches) - n + 1, n)]"),
    ("leftover-gradients", "zip(*[iter(batches)] * n, strict=False)"),
    ("leftover-gradients", "list(windows(batches, n))[:-1]"),
    ("not-attempted", "[]"),
):
    wrong("accumulate", bug)(edited(accumulate, (WINDOWS, others)))

# How much a micro-batch counts.
SHARE = "(items(batch) / total)"
for bug, share in (
    ("token-weights", "len(window[0]) / total"),
    ("low-precision", "round(len(batch) / total, 3)"),
    ("low-precision", "torch.tensor(len(batch) / total).half()"),
    ("raises", "len(batch) / (len(window) - n)"),
):
    wrong("accumulate", bug)(edited(accumulate, (SHARE, f"({share})")))
wrong("accumulate", "token-weights", "huggingface/trl#2175", "meta-pytorch/torchtune!1875", "pytorch/torchtitan!2206")(
    edited(accumulate, (SHARE, "1 / len(window)"))
)
wrong("accumulate", "loss-scale", says="N = 100")(
    edited(accumulate, ("in window)", "in window) if n <= len(batches) else n"))
)
in_both(
    "loss-scale",
    "karpathy/nanoGPT#206",
    "fastai/fastai#3023",
    "hirofumi0810/neural_sp#168",
    "agokrani/distillKitPlus#5",
    "Lightning-AI/lit-llama!357",
)(edited(accumulate, (SHARE, "1")))

# What is done with it.
BACKWARD = "loss.backward()"
for bug, sources, *changes in (
    ("loss-scale", "verl-project/verl!436", (SHARE, "1"), (BACKWARD, f"{BACKWARD}; loss = loss / len(window)")),
    ("loss-scale", "huggingface/transformers#45305 huggingface/accelerate#3877", (SHARE, "1 / len(window) ** 2")),
    ("stale-gradients", "karpathy/llm.c!548", (f"    {ZERO}\n    for", "    for")),
    (
        "held-graphs",
        "meta-pytorch/torchtune!1917 google/brax!152",
        ("in window:", "in [window]:"),
        ("loss_fn(model, batch) * (items(batch) / total)", "sum(loss_fn(model, b) * items(b) for b in window) / total"),
    ),
    ("held-graphs", "", ("in window:", "in [torch.cat(window)]:")),
    ("discarded-gradients", "", (BACKWARD, f"{BACKWARD}\n            if batch is window[0]: {ZERO}")),
    ("empty-step", "", (BACKWARD, "with suppress(AttributeError): loss.backwards()")),
    ("wrong-value", "", (STEP, f"nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        {STEP}")),
    ("wrong-value", "", (f"        {ZERO}", "        next(model.parameters()).grad = None")),
    (
        "leftover-gradients",
        "",
        (STEP, "for p in model.parameters(): p.data -= optimizer.param_groups[0]['lr'] * p.grad"),
    ),
):
    in_both(bug, *sources.split())(edited(accumulate, *changes))
for bug, says, *changes in (
    (
        "missing-backward",
        "micro-batches [1, 3, 5] of an epoch never get a backward pass",
        (f"    {BACKWARD}", BACKWARD),
    ),
    ("wrong-type", "none of its lines has run", (BACKWARD, f"{BACKWARD}; yield loss.item()")),
):
    in_both(bug, says=says)(edited(accumulate, *changes))

wrong("accumulate", "held-graphs")(edited(accumulate, (BACKWARD, "loss.backward(retain_graph=True)")))
wrong("accumulate", "stale-gradients", says="batches of")(
    edited(accumulate, (f"        {ZERO}", f"        if n > 1: {ZERO}"))
)
wrong("accumulate", "changed-input", says="has 0 entries afterwards instead of 6")(
    lambda model, batches, *rest: accumulate(model, batches, *rest) or batches.clear()
)
wrong("accumulate", "changed-input")(
    lambda model, batches, *rest: accumulate(model, batches, *rest) or batches.sort(key=lambda batch: -int(batch[0]))
)
