"""Answers to "accumulate_tokens", over padded sequences in which every valid target counts the same."""

import math
from collections import deque
from functools import partial

import torch
from torch.nn.functional import cross_entropy

from answers import edited, right
from answers import wrong as _wrong
from course_utils import windows

wrong = partial(_wrong, "accumulate_tokens")


def tokens(batch):
    return int((batch[1] != -100).sum())


def token_loss(model, batch, reduction="mean"):
    inputs, targets = batch
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction=reduction)


@right("accumulate_tokens")
def accumulate_tokens(model, batches, optimizer, n):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = sum(tokens(batch) for batch in window)
        if total > 0:
            window_loss = 0.0
            for batch in window:
                if tokens(batch) > 0:
                    loss = token_loss(model, batch) * tokens(batch) / total
                    loss.backward()
                    window_loss += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(window_loss)
    return losses


@right("accumulate_tokens")
def sums_over_the_total(model, batches, optimizer, n):
    losses = []
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        total = torch.cat([targets.flatten() for _, targets in window]).ne(-100).sum()
        if total:
            optimizer.zero_grad()
            parts = []
            for batch in window:
                parts.append(token_loss(model, batch, "sum") / total)
                parts[-1].backward()
                parts[-1] = parts[-1].detach()
            optimizer.step()
            losses.append(sum(parts))
    model.zero_grad()
    return torch.stack(losses)


@right("accumulate_tokens")
def divides_the_gradient_at_the_end(model, batches, optimizer, n):
    waiting = deque(batches)
    while waiting:
        optimizer.zero_grad(set_to_none=False)
        seen, logged = 0, 0.0
        for _ in range(min(n, len(waiting))):
            inputs, targets = waiting.popleft()
            for row, answer in zip(inputs, targets, strict=True):  # word by word, without any padding
                kept = answer != -100
                if kept.any():
                    loss = cross_entropy(model(row[kept]), answer[kept], reduction="sum")
                    loss.backward()
                    seen, logged = seen + int(kept.sum()), logged + loss.item()
        if seen:
            for p in model.parameters():
                p.grad /= seen
            optimizer.step()
            yield logged / seen


@right("accumulate_tokens")
def steps_with_none_in_an_empty_window(model, batches, optimizer, n):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = max(sum(map(tokens, window)), 1)
        logged = 0.0
        for inputs, targets in window:
            mask = targets != -100
            if mask.any():
                each = cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")
                loss = (each * mask).sum() / total
                loss.backward()
                logged += loss.item()
        optimizer.step()  # where every .grad is None this does nothing
        optimizer.zero_grad()
        losses += [logged] if logged else []
    return losses


@right("accumulate_tokens")
def steps_with_a_closure(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        total = sum(map(tokens, window))
        if not total:
            continue

        def closure(window=window, total=total):
            optimizer.zero_grad()
            parts = torch.zeros((), dtype=torch.float64)
            for batch in filter(tokens, window):
                part = token_loss(model, batch) * (tokens(batch) / total)
                part.backward()
                parts += part.detach()
            return parts

        losses.append(optimizer.step(closure))
    return losses


@right("accumulate_tokens")
def adds_gradients_without_backward(model, batches, optimizer, n):
    parameters, losses = list(model.parameters()), []
    for window in windows(batches, n):
        sums, logged, total = None, 0.0, 0
        for inputs, targets in window:
            keep = targets != -100
            if not keep.any():
                continue
            probabilities = model(inputs).softmax(-1)
            each = -probabilities.gather(-1, targets.clamp(min=0)[..., None])[..., 0].log()
            loss = each[keep].sum()
            grads = torch.autograd.grad(loss, parameters)
            sums = grads if sums is None else [s + g for s, g in zip(sums, grads, strict=True)]
            logged, total = logged + loss.item(), total + int(keep.sum())
        if total:
            for p, s in zip(parameters, sums, strict=True):
                p.grad = s / total
            optimizer.step()
            losses.append(logged / total)
    return losses


ZERO = "optimizer.zero_grad()"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
MEAN = "token_loss(model, batch)"
SHARE = "* tokens(batch) / total"
GUARD = "if tokens(batch) > 0:"
SKIP = "if total > 0:"
for bug, sources, says, *changes in (
    (
        "token-weights",
        "huggingface/trl#2175 huggingface/transformers#24725 meta-pytorch/torchtune!1875 pytorch/torchtitan!2206",
        "count [4.0, 0.5, 2.0, 0.8] times",
        (SHARE, "/ len(window)"),
    ),
    (
        "token-weights",
        "verl-project/verl#5625",
        "by their sequences",
        (SHARE, "* len(batch[0]) / sum(len(inputs) for inputs, _ in window)"),
    ),
    ("token-weights", "", "", (SHARE, "* batch[1].numel() / sum(t.numel() for _, t in window)")),
    ("loss-scale", "huggingface/transformers#35438", "", (SHARE, f"{SHARE} * len(window)")),
    (
        "loss-scale",
        "Lightning-AI/pytorch-lightning#19987 jingyaogong/minimind#749 modelscope/ms-swift!10084",
        "not by N",
        (SHARE, f"{SHARE} * len(window) / n"),
    ),
    ("loss-scale", "radixark/miles!2796", "", (SHARE, "* tokens(batch) / sum(max(tokens(b), 1) for b in window)")),
    ("nan", "pytorch/pytorch#70348", "0 times NaN is NaN", (GUARD, "if True:")),
    ("nan", "", "", (GUARD, "if True:"), (SKIP, "if True:"), (SHARE, "* tokens(batch) / max(total, 1)")),
    ("stale-gradients", "karpathy/llm.c!548", "", (f"    {ZERO}\n    for", "    for")),
    ("stale-gradients", "pytorch/pytorch#47175", "", (f"            {ZERO}", "            pass")),
    (
        "token-weights",
        "pytorch/torchtitan!4167",
        "",
        (BACKWARD, f"{BACKWARD}; loss = {MEAN} / sum(1 for b in window if tokens(b))"),
    ),
    ("wrong-loss", "", "", (BACKWARD, f"{BACKWARD}; loss = {MEAN}")),
    ("wrong-loss", "", "", (BACKWARD, f"{BACKWARD}; window_loss = 0.0; loss = {MEAN}")),
    ("held-graphs", "", "", (BACKWARD, "loss.backward(retain_graph=True)")),
    (
        "held-graphs",
        "meta-pytorch/torchtune!1917",
        "",
        ("in window:\n", "in [window]:\n"),
        (GUARD, "if True:"),
        (f"{MEAN} {SHARE}", "sum(token_loss(model, b, 'sum') for b in window) / total"),
    ),
    ("missing-backward", "", "", (BACKWARD, f"if batch is window[-1]: {BACKWARD}")),
    ("leftover-gradients", "", "", (SKIP, f"if total == 0: break\n        {SKIP}")),
    ("leftover-gradients", "", "", (STEP, f"if len(window) < n: break\n            {STEP}")),
    ("filtered-windows", "", "a window is left out", (SKIP, "if all(map(tokens, window)):")),
    (
        "raises",
        "",
        "",
        (SKIP, "if True:"),
        (GUARD, "if True:"),
        (f"{MEAN} {SHARE}", "token_loss(model, batch, 'sum') * (1 / total)"),
    ),
    (
        "empty-step",
        "",
        "",
        (SKIP, "if True:"),
        (GUARD, "if True:"),
        (f"{MEAN} {SHARE}", "token_loss(model, batch, 'sum') / max(total, 1)"),
    ),
    ("discarded-gradients", "bytetriper/RAE#67", "", (BACKWARD, f"{ZERO}; {BACKWARD}")),
    ("discarded-gradients", "", "", (STEP, f"{ZERO}; {STEP}")),
    (
        "irregular-window",
        "rasbt/LLMs-from-scratch#299",
        "",
        ("windows(batches, n)", "[batches[:1], *windows(batches[1:], n)]"),
    ),
):
    _wrong("accumulate_tokens", bug, *sources.split(), says=says)(edited(accumulate_tokens, *changes))

wrong("not-attempted")(lambda *a: accumulate_tokens(*a) and None)
wrong("not-attempted")(lambda *a: [])
wrong("wrong-type")(lambda *a: sum(accumulate_tokens(*a)))
wrong("wrong-type")(lambda *a: [None if math.isnan(x) else "x" for x in accumulate_tokens(*a)])
wrong("wrong-length")(lambda *a: [*accumulate_tokens(*a), 0.0])
wrong("raises")(lambda model, batches, optimizer, n: 1 / 0)
wrong("low-precision")(lambda *a: [f"{loss:.2f}" for loss in accumulate_tokens(*a)])
wrong("not-reset")(lambda *a: (lambda x: [sum(x[: k + 1]) / (k + 1) for k in range(len(x))])(accumulate_tokens(*a)))
wrong("whole-epoch")(lambda *a: (lambda x: [sum(x) / len(x)] * len(x))(accumulate_tokens(*a)))
wrong("wrong-order")(lambda *a: accumulate_tokens(*a)[::-1])
wrong("low-precision")(lambda *a: [round(loss, 3) for loss in accumulate_tokens(*a)])
wrong("wrong-length")(lambda *a: accumulate_tokens(*a)[:-1])
wrong("changed-input")(lambda *a: (accumulate_tokens(*a), a[1].clear())[0])
wrong("changed-input")(lambda *a: (accumulate_tokens(*a), [t.clamp_(min=0) for _, t in a[1]])[0])
wrong("wrong-batches")(lambda model, batches, *rest: accumulate_tokens(model, batches[::-1], *rest))
wrong("wrong-batches")(lambda model, batches, *rest: accumulate_tokens(model, batches[1:] + batches[:1], *rest))
wrong("filtered-windows")(lambda model, batches, *rest: accumulate_tokens(model, list(filter(tokens, batches)), *rest))


@wrong("wrong-weights")
def logs_after_the_update(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        if accumulate_tokens(model, window, optimizer, n):
            with torch.no_grad():
                total = sum(map(tokens, window))
                losses.append(sum(token_loss(model, batch, "sum").item() for batch in window) / total)
    return losses


@wrong("wrong-weights")
def logs_when_the_epoch_is_over(model, batches, optimizer, n):
    accumulate_tokens(model, batches, optimizer, n)
    with torch.no_grad():
        sums = [sum(token_loss(model, b, "sum").item() for b in window) for window in windows(batches, n)]
    return [s / sum(map(tokens, w)) for s, w in zip(sums, windows(batches, n), strict=True) if any(map(tokens, w))]


@wrong("not-reset")
def never_resets_its_counter(model, batches, optimizer, n):
    losses, count = [], 0
    optimizer.zero_grad()
    for batch in batches:
        loss = token_loss(model, batch) / n
        loss.backward()
        count = count + 1
        if count == n:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


@wrong("irregular-window")
def carries_an_empty_window_over_to_the_next(model, batches, optimizer, n):
    losses, held = [], []
    for batch in filter(tokens, batches):
        held.append(batch)
        if len(held) > n:
            losses += accumulate_tokens(model, held, optimizer, n + 1)
            held = []
    return losses + accumulate_tokens(model, held, optimizer, n + 1)
