"""What training should do, written plainly: one item at a time, in float64, no accumulation.

An epoch here sums the losses of single items and differentiates that sum once per window. It keeps
no gradients between windows, so an error at any place can leave none behind.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def mse(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def item_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x[None])[0] - y).square().mean()


def window_loss(model: nn.Module, window: list) -> Tensor | None:
    """The mean over all items of a window, each as often as it counts; None if nothing counts."""
    total = sum(float(counts.sum()) for _, _, counts in window)
    if not total:
        return None
    loss = torch.zeros((), dtype=torch.float64)
    for xs, ys, counts in window:
        if counts.sum() > 0:
            for x, y, count in zip(xs, ys, counts, strict=True):
                loss = loss + count * item_loss(model, x, y)
    return loss / total


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor | None]:
    wanted = [p for p in model.parameters() if p.requires_grad]
    found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
    return [next(found) if p.requires_grad else None for p in model.parameters()]


def dense(gradient: Tensor | None) -> Tensor:
    """A copy; without numbers where there is no gradient."""
    if gradient is None:
        return torch.empty(0)
    return gradient.detach().to_dense() if gradient.is_sparse else gradient.detach().clone()


class Reference:
    """A model with its optimizer and schedule, and by hand what a scaler counts.

    Args:
        model: Trained in place.
        optimizer: Owns some of its parameters.
        scheduler: Stepped once per update, or None.
        max_norm: For clipping, or None.
        growth: After how many updates in a row the scale doubles; None without a scaler.
    """

    def __init__(self, model: nn.Module, optimizer, scheduler, max_norm: float | None, growth: int | None) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.max_norm, self.growth = max_norm, growth
        self.scale, self.in_a_row = 2.0**16, 0
        self.owned = {p for group in optimizer.param_groups for p in group["params"]}
        self.seen: list[list[Tensor]] = []  # the gradients of each step

    def epoch(self, batches: list, n: int, at: Callable[[str], None]) -> tuple[list[float], int]:
        """Returns the losses, and how many windows made no update. `at(point)` may raise."""
        losses, skipped = [], 0
        for start in range(0, len(batches), n):
            window = batches[start : start + n]
            for point in ("loader", "weight"):
                for _ in window:
                    at(point)
            for _, _, counts in window:
                if counts.sum() > 0:
                    for point in ("forward", "loss", "backward", "hook"):
                        at(point)
            loss = window_loss(self.model, window)
            if loss is None:
                continue
            losses.append(loss.item())
            if not self.update(gradients(self.model, loss), at):
                skipped += 1
            elif self.scheduler:
                at("scheduler")
                self.scheduler.step()
        return losses, skipped

    def update(self, found: list[Tensor | None], at: Callable[[str], None]) -> bool:
        given = [dense(g) for p, g in zip(self.model.parameters(), found, strict=True) if p in self.owned]
        finite = all(bool(g.isfinite().all()) for g in given)
        if not finite:
            self.scale, self.in_a_row = self.scale / 2, 0
            return False
        norm = math.sqrt(sum(float(g.abs().square().sum()) for g in given))
        factor = 1.0 if self.max_norm is None else min(1.0, self.max_norm / (norm + 1e-6))
        for p, g in zip(self.model.parameters(), found, strict=True):
            p.grad = g if g is None or p not in self.owned else g * factor
        try:
            self.seen.append([dense(p.grad) for p in self.model.parameters()])
            at("before the step")
            self.optimizer.step()
            at("after the step")
        finally:
            self.in_a_row += 1
            if self.in_a_row == self.growth:
                self.scale, self.in_a_row = self.scale * 2, 0
            for p in self.model.parameters():
                p.grad = None
        return True
