"""The exercise of notebook 04: one update of a window, with class weights and one clip, judged on a real model."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.memory import saved_bytes
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare_memory

Window = Sequence[tuple[Tensor, Tensor]]

_CLASS_WEIGHTS = (1.0, 20.0, 0.5, 3.0)
_NEVER = 1e6  # no gradient is as long: a clip that does nothing
_OLD = 0.5  # the entries of gradients that an earlier backward has left
_CLASSES = [0, 0, 2, 0, 1, 3, 1, 1, 3, 3, 2, 3, 2, 2, 0, 2]  # rare and frequent ones lie together


@exercise("weighted_window")
def _weighted_window(answer: Callable) -> str:
    # Without a clip first: with one, a wrong scale would not show. Then old gradients, then clips that are at work.
    for sizes in ((4,), (4, 4, 4, 4), (6, 1, 3, 2)):
        _judge(answer, sizes, clip=None)
    _judge(answer, (4, 4, 4, 4), clip=None, dirty=True)
    for sizes in ((4, 4, 4, 4), (6, 1, 3, 2)):
        for clip in (0.3, 1.05):
            _judge(answer, sizes, clip)
    _judge(answer, (6, 1, 3, 2), clip=None, adam=True)
    return (
        "one, equal and ragged micro-batches, old gradients, clips that are at work and clips that are not, SGD and "
        "Adam: every update is that of one batch."
    )


def _judge(answer: Callable, sizes: Sequence[int], clip: float | None, dirty: bool = False, adam: bool = False) -> None:
    weights = torch.tensor(_CLASS_WEIGHTS, dtype=torch.float64)
    ours = mlp(3, 5, 4).double()
    windows = [_window(sizes, turn) for turn in range(2)]
    theirs = copy.deepcopy(ours)
    for p in theirs.parameters():
        p.grad = torch.full_like(p, _OLD) if dirty else None
    max_norm = _NEVER if clip is None else clip * float(_gradient(ours, windows[0], weights).norm())

    right = []
    optimizer = _optimizer(ours, adam)
    starts = []
    for window in windows:
        starts.append(copy.deepcopy(ours))
        _put(ours, _clipped(_gradient(ours, window, weights), max_norm))
        right.append(_held(ours))
        optimizer.step()

    with saved_bytes(theirs) as one:
        x, y = max(windows[0], key=lambda batch: len(batch[1]))
        F.cross_entropy(theirs(x), y, weight=weights)
    got: list[Tensor] = []
    arrived: list[Tensor] = []
    optimizer = _optimizer(theirs, adam)
    optimizer.register_step_pre_hook(lambda *_: got.append(_held(theirs)))
    next(theirs.parameters()).register_post_accumulate_grad_hook(arrived.append)
    with saved_bytes(theirs) as saved:
        for window in windows:
            answer(theirs, list(window), weights.clone(), optimizer, max_norm)

    kind = "no clip at work" if clip is None else f"max_norm {clip} times the window's norm"
    case = f"micro-batches of {list(sizes)} samples, {kind}" + (", old gradients in the model" if dirty else "")
    if all(
        torch.allclose(p, q, rtol=0, atol=2e-6) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True)
    ):
        compare_memory(saved, one, case)
        return
    bug, hint = _diagnose(starts, windows, weights, max_norm, got, right, len(arrived), dirty)
    raise Mistake(bug, f"{case}: {hint}.")


def _diagnose(
    starts: list[nn.Module],
    windows: list[Window],
    weights: Tensor,
    max_norm: float,
    got: list[Tensor],
    right: list[Tensor],
    arrived: int,
    dirty: bool,
) -> tuple[str, str]:
    """The first bug that the gradients at the steps show, and how it shows."""
    if not got:
        if not arrived:
            return "not-attempted", "no backward and no step has run yet, one update is expected for each window"
        return "leftover-gradients", "backward has run and optimizer.step() has not"
    if len(got) != len(windows):
        return "irregular-window", f"{len(got)} steps for {len(windows)} windows, one each was expected"
    for k, (held, want) in enumerate(zip(got, right, strict=True)):
        if not held.any():
            if not arrived:
                return "empty-step", "a step ran and no backward"
            return "discarded-gradients", "the step found no gradient: something zeroes between backward and step"
        if torch.allclose(held, want, rtol=1e-5, atol=1e-7):
            continue
        start, window = starts[k], windows[k]
        fresh = _gradient(start, window, weights)
        if dirty and _same(held - _OLD, fresh):
            return "stale-gradients", f"gradients that were there before are still in update {k + 1}"
        if k and _same(held - got[k - 1], fresh):
            return "stale-gradients", f"update {k + 1} holds the gradient of the update before, too"
        return _name(start, window, weights, max_norm, held, want)
    return "wrong-value", "each step found the right gradient, and the weights are not those of the large batch"


def _name(
    start: nn.Module, window: Window, weights: Tensor, max_norm: float, held: Tensor, want: Tensor
) -> tuple[str, str]:
    """What is wrong with one update's gradient, from the wrong gradients that it could be."""
    items = [len(y) for _, y in window]
    sums = [float(weights[y].sum()) for _, y in window]
    means = [_gradient(start, [batch], weights) for batch in window]
    unclipped = _gradient(start, window, weights)
    unclipped_norm, norm = float(unclipped.norm()), float(held.norm())
    clipping = unclipped_norm > max_norm

    if _same_line(held, want):
        factor = norm / float(want.norm())
        if clipping and norm > max_norm * (1 + 1e-5):
            return "clip-timing", f"the step's gradient has the norm {norm:.3g}, which is above max_norm {max_norm:.3g}"
        return "loss-scale", f"the step's gradient is {factor:.3g} times what it should be"
    shares = [total / sum(sums) for total in sums]
    if len(window) > 1:
        for place, gradient in enumerate(means, start=1):
            if _same_line(held, gradient):
                return "discarded-gradients", f"the step's gradient is that of micro-batch {place} alone"
        for wrong, what in ((items, "samples"), ([1] * len(window), "micro-batches")):
            if _same_line(held, sum(g * w for g, w in zip(means, wrong, strict=True))):
                found = [round(part / sum(wrong), 3) for part in wrong]
                return "token-weights", (
                    f"the micro-batches count by their {what}, {found}, and should count by what their means were "
                    f"divided by, {[round(share, 3) for share in shares]}"
                )
        if _same_line(held, sum(g * w * w for g, w in zip(means, sums, strict=True))):
            return "token-weights", "each micro-batch is multiplied by its class weights twice"
    if _same_line(held, _gradient(start, window, torch.ones_like(weights))):
        return "missing-class-weights", "this is the gradient of the loss without class weights"
    parts = [g * share for g, share in zip(means, shares, strict=True)]
    running = torch.zeros_like(want)
    for part in parts:
        running = _clipped(running + part, max_norm)
    late = torch.zeros_like(want)
    for part in parts:
        late = (_clipped(late, max_norm) if late.any() else late) + part
    for wrong, what in (
        (running, "the sum is clipped after each backward"),
        (late, "the clip comes before the backward, so the last gradient is not clipped"),
        (_clipped(late, max_norm), "the sum is clipped before each backward as well"),
        (sum(_clipped(part, max_norm) for part in parts), "each micro-batch's gradient is clipped by itself"),
        (sum(_clipped(g, max_norm) * s for g, s in zip(means, shares, strict=True)), "each mean's gradient is clipped"),
    ):
        if _same_line(held, wrong):
            return "clip-timing", f"{what}. Clip once, when all of the window has been added up"
    if clipping or any(float(part.norm()) > max_norm for part in parts):
        cosine = float(F.cosine_similarity(held, want, dim=0))
        return "clip-timing", f"without an active clip it was right; now the direction is off, cosine {cosine:.3f}"
    return "wrong-value", f"the step's gradient is not that of one batch of all {sum(items)} samples"


def _window(sizes: Sequence[int], turn: int) -> Window:
    classes = torch.tensor(_CLASSES).roll(5 * turn)[: sum(sizes)]
    x = torch.randn(sum(sizes), 3, dtype=torch.float64) + classes[:, None]
    return list(zip(x.split(list(sizes)), classes.split(list(sizes)), strict=True))


def _gradient(model: nn.Module, window: Window, weights: Tensor) -> Tensor:
    """The gradient of one batch of all the window's samples; the model's own .grad is left alone."""
    x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
    loss = F.cross_entropy(model(x), y, weight=weights)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def _clipped(gradient: Tensor, max_norm: float) -> Tensor:
    return gradient * min(1.0, max_norm / (float(gradient.norm()) + 1e-6))


def _put(model: nn.Module, gradient: Tensor) -> None:
    parameters = list(model.parameters())
    for p, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p).clone()


def _held(model: nn.Module) -> Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.detach().flatten() for grad in grads]).clone()


def _optimizer(model: nn.Module, adam: bool) -> torch.optim.Optimizer:
    make = torch.optim.Adam if adam else torch.optim.SGD
    return make(model.parameters(), lr=0.01) if adam else make(model.parameters(), lr=0.2, momentum=0.9)


def _same(held: Tensor, want: Tensor) -> bool:
    return torch.allclose(held, want, rtol=1e-6, atol=1e-8)


def _same_line(held: Tensor, want: Tensor) -> bool:
    """The same direction, whatever the length."""
    return float(F.cosine_similarity(held, want, dim=0)) > 1 - 1e-9
