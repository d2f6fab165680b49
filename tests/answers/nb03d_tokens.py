"""Answers to "accumulate_tokens", over padded sequences in which every valid target counts the same."""

import math
from collections import deque
from functools import partial

import torch
from torch.nn.functional import cross_entropy

from answers import right
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


def loop(share_of, valid=tokens, zero_first=True, step_when_empty=False, log=None):
    """A loop that is right but for `share_of(batch, window, n)`, the factor of a micro-batch's mean loss."""

    def answer(model, batches, optimizer, n):
        losses = []
        if zero_first:
            optimizer.zero_grad()
        for window in windows(batches, n):
            if not any(map(tokens, window)) and not step_when_empty:
                continue
            means, logged = [], 0.0
            for batch in window:
                if valid(batch):
                    means.append(token_loss(model, batch))
                    loss = means[-1] * share_of(batch, window, n)
                    loss.backward()
                    logged += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(log(means, window, n) if log else logged)
        return losses

    return answer


def by_tokens(batch, window, n):
    return tokens(batch) / sum(map(tokens, window))


wrong(
    "token-weights",
    "huggingface/trl#2175",
    "huggingface/transformers#24725",
    "meta-pytorch/torchtune!1875",
    "pytorch/torchtitan!2206",
    says="count [4.0, 0.5, 2.0, 0.8] times",
)(loop(lambda batch, window, n: 1 / len(window)))
wrong("token-weights", "verl-project/verl#5625", says="by their sequences")(
    loop(lambda batch, window, n: len(batch[0]) / sum(len(inputs) for inputs, _ in window))
)
wrong("token-weights", says="padding and masked")(
    loop(lambda batch, window, n: batch[1].numel() / sum(t.numel() for _, t in window))
)
wrong("loss-scale", "huggingface/transformers#35438")(loop(lambda *a: by_tokens(*a) * len(a[1])))
wrong(
    "loss-scale",
    "Lightning-AI/pytorch-lightning#19987",
    "jingyaogong/minimind#749",
    "modelscope/ms-swift!10084",
    says="not by N",
)(loop(lambda batch, window, n: by_tokens(batch, window, n) * len(window) / n))
wrong("loss-scale", "radixark/miles!2796")(
    loop(lambda batch, window, n: tokens(batch) / sum(max(tokens(b), 1) for b in window))
)
wrong("nan", "pytorch/pytorch#70348", says="0 times NaN is NaN")(loop(by_tokens, valid=lambda batch: True))
wrong("nan")(loop(lambda b, w, n: tokens(b) / max(sum(map(tokens, w)), 1), valid=lambda b: True, step_when_empty=True))
wrong("stale-gradients", "karpathy/llm.c!548")(loop(by_tokens, zero_first=False))
wrong("token-weights", "pytorch/torchtitan!4167")(
    loop(by_tokens, log=lambda means, w, n: sum(means).item() / len(means))
)
wrong("wrong-loss")(loop(by_tokens, log=lambda means, window, n: sum(means).item()))
wrong("wrong-loss")(loop(by_tokens, log=lambda means, window, n: means[-1].item()))
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


@wrong("held-graphs")
def retains_every_graph(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        total, logged = sum(map(tokens, window)), 0.0
        if total:
            optimizer.zero_grad()
            for batch in filter(tokens, window):
                loss = token_loss(model, batch) * tokens(batch) / total
                loss.backward(retain_graph=True)
                logged += loss.item()
            optimizer.step()
            losses.append(logged)
    return losses


@wrong("missing-backward")
def has_its_backward_outside_the_inner_loop(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        total = sum(map(tokens, window))
        if total:
            optimizer.zero_grad()
            for batch in filter(tokens, window):
                loss = token_loss(model, batch) * tokens(batch) / total
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


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


@wrong("leftover-gradients")
def stops_at_the_first_empty_window(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        if not any(map(tokens, window)):
            break
        losses += accumulate_tokens(model, window, optimizer, n)
    return losses


@wrong("filtered-windows", says="a window is left out")
def leaves_out_windows_with_an_empty_micro_batch(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        if all(map(tokens, window)):
            losses += accumulate_tokens(model, window, optimizer, n)
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


@wrong("missing-backward")
def stops_at_an_empty_micro_batch(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        total, logged = sum(map(tokens, window)), 0.0
        if not total:
            continue
        optimizer.zero_grad()
        for batch in window:
            if not tokens(batch):
                break
            loss = token_loss(model, batch, "sum") / total
            loss.backward()
            logged += loss.item()
        optimizer.step()
        losses.append(logged)
    return losses


@wrong("raises")
def divides_by_zero_tokens(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        optimizer.zero_grad()
        total, logged = sum(map(tokens, window)), 0.0
        for batch in window:
            loss = token_loss(model, batch, "sum") * (1 / total)
            loss.backward()
            logged += loss.item()
        optimizer.step()
        losses.append(logged)
    return losses


@wrong("empty-step")
def guards_the_total_and_steps_with_zeros(model, batches, optimizer, n):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = max(sum(map(tokens, window)), 1)
        parts = [token_loss(model, batch, "sum") / total for batch in window]
        for part in parts:
            part.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(parts).item())
    return losses


@wrong("leftover-gradients")
def never_steps_a_short_window(model, batches, optimizer, n):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        parts = [token_loss(model, batch) * by_tokens(batch, window, n) for batch in window]
        sum(parts).backward()
        if len(window) == n:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(sum(parts).item())
    return losses


@wrong("irregular-window", "rasbt/LLMs-from-scratch#299")
def steps_where_i_modulo_n_is_0(model, batches, optimizer, n):
    for i, batch in enumerate(batches):
        (token_loss(model, batch) / n).backward()
        if i % n == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [0.0]


@wrong("discarded-gradients", "bytetriper/RAE#67")
def zeroes_before_every_backward(model, batches, optimizer, n):
    for window in windows(batches, n):
        for batch in window:
            optimizer.zero_grad()
            (token_loss(model, batch) * by_tokens(batch, window, n)).backward()
        optimizer.step()
    return [0.0]


@wrong("discarded-gradients")
def zeroes_before_the_step(model, batches, optimizer, n):
    for window in windows(batches, n):
        for batch in window:
            (token_loss(model, batch) * by_tokens(batch, window, n)).backward()
        optimizer.zero_grad()
        optimizer.step()
    return [0.0]


@wrong("stale-gradients", "pytorch/pytorch#47175")
def never_zeroes(model, batches, optimizer, n):
    for window in windows(batches, n):
        for batch in window:
            (token_loss(model, batch) * by_tokens(batch, window, n)).backward()
        optimizer.step()
    return [0.0]


@wrong("held-graphs", "meta-pytorch/torchtune!1917")
def adds_the_losses_for_one_backward(model, batches, optimizer, n):
    losses = []
    for window in windows(batches, n):
        total = sum(map(tokens, window))
        if total:
            optimizer.zero_grad()
            loss = sum(token_loss(model, batch, "sum") for batch in window) / total
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    optimizer.zero_grad()
    return losses
