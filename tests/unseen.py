"""Loops that the auditor's rules were not written with: correct ones of several forms, and bugs planted in them.

What is wrong with a loop is known from the edit that was made to its source, not from the auditor. The *kinds* of bugs
are those that it looks for (and two that it doesn't); the sources are none of those that it was written with. Models,
losses and optimizers are drawn at random.
"""

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]

# The correct forms. Each update has the gradient of the mean over its window, clipped once.

BY_COUNT = """\
def loop(task, optimizer, n, limit):
    schedule = LinearLR(optimizer, start_factor=0.1, total_iters=6)
    for _ in range(2):
        for i, batch in enumerate(task.batches):
            held = min(n, len(task.batches) - i + i % n)
            (task.loss(batch) / held).backward()
            if (i + 1) % n == 0 or i + 1 == len(task.batches):
                clip_grad_norm_(task.model.parameters(), limit)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
"""
BY_WINDOW = """\
def loop(task, optimizer, n, limit):
    schedule = CosineAnnealingLR(optimizer, T_max=40)
    for _ in range(2):
        rest = iter(task.batches)
        while window := list(islice(rest, n)):
            total = sum(task.count(batch) for batch in window)
            optimizer.zero_grad()
            for batch in window:
                loss = task.loss(batch) * task.count(batch) / total
                loss.backward()
            clip_grad_norm_(task.model.parameters(), limit)
            optimizer.step()
            schedule.step()
"""
BY_TRAINER = """\
class Trainer:
    def __init__(self, task, optimizer, n, limit):
        self.task, self.optimizer, self.n, self.limit = task, optimizer, n, limit
        self.schedule = StepLR(optimizer, step_size=4)
        self.scaler = GradScaler("cpu", init_scale=64.0)

    def accumulate(self, batch, share):
        self.scaler.scale(share * self.task.loss(batch)).backward()

    def update(self):
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.task.model.parameters(), self.limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()

    def fit(self):
        for _ in range(2):
            for first in range(0, len(self.task.batches), self.n):
                window = self.task.batches[first : first + self.n]
                total = sum(map(self.task.count, window))
                for batch in window:
                    self.accumulate(batch, self.task.count(batch) / total)
                self.update()


def loop(task, optimizer, n, limit):
    Trainer(task, optimizer, n, limit).fit()
"""
FORMS = {"count": BY_COUNT, "window": BY_WINDOW, "trainer": BY_TRAINER}
_IMPORTS = """\
from copy import deepcopy
from itertools import islice

import torch
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, StepLR


"""


def _put(line: str, where: str, text: str) -> str:
    """Puts a line before, or after, the first line that begins with what `where` says: "before if", "after loss"."""
    side, _, anchor = where.partition(" ")
    lines = text.splitlines(keepends=True)
    at = next(i for i, other in enumerate(lines) if other.strip().startswith(anchor))
    indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
    lines.insert(at + (side == "after"), f"{indent}{line}\n")
    return "".join(lines)


def _drop(line: str, text: str) -> str:
    return "".join(other for other in text.splitlines(keepends=True) if other.strip() != line)


@dataclass(frozen=True)
class Edit:
    """A bug, as an edit to a form's source.

    Attributes:
        kind: What is wrong.
        rule: The rule whose business it is; none for bugs that no rule looks for.
        form: The name of the form.
        change: (old, new) replaces a text. (line,) drops a line; with `put`, the line goes there instead.
        put: Where, such as "before if" or "after loss.backward()": beside the first line that begins so.
        keep: Whether the line also stays where it was.
        part: Two bugs of different parts can be planted in one loop; one without a part stands alone.
        also: Rules that it breaks, too.
        needs: "tail" for a short last window, "ragged" or "equal" for micro-batches of unequal or equal counts.

    Example:
        >>> edit = Edit("not divided", "loss-scale", "count", (" / held", ""))
        >>> edit("(task.loss(batch) / held).backward()")
        '(task.loss(batch)).backward()'
    """

    kind: str
    rule: str
    form: str
    change: tuple[str, ...]
    put: str = ""
    keep: bool = False
    part: str = ""
    also: tuple[str, ...] = ()
    needs: str = ""

    def __call__(self, source: str) -> str:
        old, *new = self.change
        if new:
            return source.replace(old, new[0], 1)
        source = source if self.keep else _drop(old, source)
        return _put(old, self.put, source) if self.put else source


_ZERO, _ZERO_OWN = "optimizer.zero_grad()", "self.optimizer.zero_grad()"
_CLIP, _STEP = "clip_grad_norm_(task.model.parameters(), limit)", "optimizer.step()"
_SHARE, _REPLACED = "task.count(batch) / total", "task.model[-1] = deepcopy(task.model[-1])"
_NEW_SCALER = 'self.scaler = GradScaler("cpu", init_scale=64.0)'


def _kind(kind: str, rule: str, *edits: tuple, **common) -> list[Edit]:
    return [Edit(kind, rule, form, change, **common | dict(*more)) for form, change, *more in edits]


EDITS = [
    *_kind("not divided", "loss-scale",
           ("count", ("(task.loss(batch) / held)", "task.loss(batch)")),
           ("window", (f" * {_SHARE}", ""), {"needs": "equal"}),
           ("trainer", ("share * self.task", "self.task"), {"needs": "equal"}), part="scale"),
    *_kind("divided twice", "loss-scale",
           ("count", (" / held)", " / held / n)")),
           ("trainer", ("scale(share", "scale(1 / self.n * share"), {"needs": "equal"}), part="scale"),
    *_kind("tail divided by N", "loss-scale", ("count", (" / held)", " / n)"), {"needs": "tail"})),
    *_kind("mean of unequal means", "token-weights",
           ("window", (_SHARE, "1 / len(window)")),
           ("trainer", ("self.task.count(batch) / total", "1 / len(window)")), part="scale", needs="ragged"),
    *_kind("never zeroed", "stale-gradients",
           ("count", (_ZERO,)), ("window", (_ZERO,)), ("trainer", (_ZERO_OWN,)), part="zero"),
    *_kind("zeroed once an epoch", "stale-gradients",
           ("count", (_ZERO,), {"put": "before for i"}), ("window", (_ZERO,), {"put": "before rest"}),
           ("trainer", (_ZERO_OWN,), {"put": "before for first"}), part="zero"),
    *_kind("zeroed in each micro-batch", "discarded-gradients",
           ("count", (_ZERO,), {"put": "before held"}), ("window", (_ZERO,), {"put": "before loss ="}),
           ("trainer", (_ZERO_OWN,), {"put": "before self.scaler.scale"}), also=("irregular-window",)),
    *_kind("zeroed before the step", "empty-step",
           ("count", (_ZERO,), {"put": "before clip"}), ("window", (_ZERO,), {"put": "before clip"}),
           also=("discarded-gradients", "clip-timing")),
    *_kind("tail without a step", "leftover-gradients",
           ("count", (" or i + 1 == len(task.batches)", "")), also=("irregular-window",), needs="tail"),
    *_kind("steps counted from 0", "irregular-window", ("count", ("(i + 1) % n == 0", "i % n == 0"))),
    *_kind("step in each micro-batch", "irregular-window",
           ("count", ("if (i + 1) % n == 0 or i + 1 == len(task.batches)", "if True")),
           ("window", (_STEP,), {"put": "after loss.backward()", "also": ("stale-gradients", "clip-timing")}),
           ("trainer", ("self.update()",), {"put": "after self.accumulate"})),
    *_kind("clipped in each micro-batch", "clip-timing",
           ("count", (_CLIP,), {"put": "before if"}), ("window", (_CLIP,), {"put": "after loss.backward()"}),
           part="clip"),
    *_kind("clipped after the step", "clip-timing",
           ("count", (_CLIP,), {"put": "before schedule.step()"}),
           ("window", (_CLIP,), {"put": "before schedule.step()"}), part="clip"),
    *_kind("clipped before unscale_()", "clip-timing", ("trainer", ("self.scaler.unscale_(self.optimizer)",)),
           part="clip"),
    *_kind("a scaler in each epoch", "scaler-timing", ("trainer", (_NEW_SCALER,), {"put": "before for first"}),
           part="scaler", keep=True),
    *_kind("scheduler in each micro-batch", "scheduler-cadence",
           ("count", ("schedule.step()",), {"put": "before if"}),
           ("window", ("schedule.step()",), {"put": "after loss.backward()"}),
           ("trainer", ("self.schedule.step()",), {"put": "after self.scaler.scale"}), part="schedule"),
    *_kind("layer replaced too late", "orphan-parameters",
           *((form, (_REPLACED,), {"put": "before schedule ="}) for form in ("count", "window")),
           part="parameters"),
    # no rule looks for these: from outside, both loops are accumulation as it should be
    *_kind("one batch again and again", "", ("count", ("task.loss(batch)", "task.loss(task.batches[0])"))),
    *_kind("tail never computed", "",
           ("window", ("while window := list(islice(rest, n)):", "while len(window := list(islice(rest, n))) == n:")),
           needs="tail"),
]  # fmt: skip


# What the loops train


@dataclass(frozen=True)
class Task:
    """A model, the micro-batches of an epoch, their mean loss, and over how many samples or tokens that mean is."""

    model: nn.Sequential
    batches: list[Batch]
    loss: Callable[[Batch], Tensor]
    count: Callable[[Batch], int]


def _masked(scores: Tensor, y: Tensor) -> Tensor:
    """The mean of the tokens that are not padding, written by hand."""
    losses = F.cross_entropy(scores.flatten(0, 1), y.clamp(min=0).flatten(), reduction="none")
    return (losses * (y >= 0).flatten()).sum() / (y >= 0).sum()


def _hinge(scores: Tensor, y: Tensor) -> Tensor:
    return (1 - scores * (2 * y - 1)).clamp(min=0).mean()


def _dot_product(scores: Tensor, y: Tensor) -> Tensor:
    """A mean of squares as no rule knows it: a product of two vectors."""
    wrong = (scores - y).flatten()
    return wrong @ wrong / wrong.numel()


_LABELS = {
    "cross entropy": F.cross_entropy,
    "smoothed cross entropy": lambda scores, y: F.cross_entropy(scores, y, label_smoothing=0.1),
    "log-softmax and nll": lambda scores, y: F.nll_loss(scores.log_softmax(-1), y),
    "multi-margin": F.multi_margin_loss,
}
_VALUES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "smooth l1": F.smooth_l1_loss,
    "bce with logits": F.binary_cross_entropy_with_logits,
    "poisson": F.poisson_nll_loss,
    "hinge by hand": _hinge,
    "mean of squares by hand": lambda scores, y: (scores - y).square().mean(),
    "a dot product": _dot_product,
}
_TOKENS = {
    "tokens": lambda scores, y: F.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=-1),
    "tokens, masked by hand": _masked,
}
LOSSES = _LABELS | _VALUES | _TOKENS
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


def _layers(loss: str, convolution: bool) -> list[nn.Module]:
    if loss in _TOKENS:
        return [nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 20)]
    if convolution:
        return [nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)]
    return [nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)]


def _task(loss: str, convolution: bool, sizes: list[int], seed: int) -> Task:
    """The micro-batches have these sizes; of a text, each micro-batch is as many tokens, beside its padding."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = nn.Sequential(*_layers(loss, convolution)).double()
        if loss in _TOKENS:
            x = [torch.randint(20, (3, 6)) for _ in sizes]
            y = [torch.where(torch.arange(18).view(3, 6) < size, (3 * each + 1) % 20, -1)
                 for each, size in zip(x, sizes, strict=True)]  # fmt: skip
        else:
            x = [torch.randn(size, 16, dtype=torch.float64) for size in sizes]
            scores = [each[:, :4] + each[:, 4:8] for each in x]
            y = [each.argmax(1) if loss in _LABELS else (each > 0).double() for each in scores]
    batches = list(zip(x, y, strict=True))
    return Task(
        model,
        batches,
        lambda batch: LOSSES[loss](model(batch[0]), batch[1]),
        lambda batch: int((batch[1] >= 0).sum()) if loss in _TOKENS else len(batch[0]),
    )


@dataclass(frozen=True)
class UnseenLoop:
    """A loop, and what it trains. Calling it trains, and leaves the random state as it was.

    Attributes:
        number: Which one it is.
        planted: The bugs that its source was given; none in a correct loop.
        n: How many micro-batches a window is meant to hold.
        source: Its source, bugs included.

    Example:
        >>> (loop,) = unseen_loops(correct=1, buggy=0)
        >>> loop()
        >>> loop.form, loop.n
        ('count', 5)
    """

    number: int
    planted: tuple[Edit, ...]
    form: str
    loss: str
    optimizer: str
    n: int
    sizes: list[int] = field(repr=False)
    limit: float
    convolution: bool

    @property
    def source(self) -> str:
        text = FORMS[self.form]
        for edit in self.planted:
            text = edit(text)
        return text

    def __call__(self) -> None:
        file, text = f"<unseen loop {self.number}>", _IMPORTS + self.source
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # for reports, which quote lines
        names: dict = {"__name__": "unseen"}
        exec(compile(text, file, "exec"), names)
        task = _task(self.loss, self.convolution, self.sizes, self.number)
        names["loop"](task, OPTIMIZERS[self.optimizer](task.model.parameters()), self.n, self.limit)


def unseen_loops(correct: int, buggy: int, seed: int = 0) -> list[UnseenLoop]:
    """Draws loops: first correct ones, then buggy ones, of which every third has two bugs where two can stand.

    Args:
        correct: How many correct loops.
        buggy: How many buggy loops. The edits take turns.
        seed: Other seeds make other loops.

    Example:
        >>> [len(loop.planted) for loop in unseen_loops(correct=1, buggy=2)]
        [0, 1, 1]
    """
    draw = random.Random(seed)
    first = [(form, ()) for form in islice(cycle(FORMS), correct)]
    for number, edit in enumerate(islice(cycle(draw.sample(EDITS, len(EDITS))), buggy)):
        partners = [other for other in EDITS if other.form == edit.form and _fit(edit, other)]
        second = draw.choice(partners) if number % 3 == 2 and partners else None
        first.append((edit.form, (edit, second) if second else (edit,)))
    return [_drawn(draw, number, form, planted) for number, (form, planted) in enumerate(first)]


def _fit(edit: Edit, other: Edit) -> bool:
    return bool(edit.part and other.part) and edit.part != other.part


def _drawn(draw: random.Random, number: int, form: str, planted: tuple[Edit, ...]) -> UnseenLoop:
    needs = {edit.needs for edit in planted}
    ragged = "ragged" in needs or (form != "count" and "equal" not in needs and draw.random() < 0.5)
    n = draw.randint(2, 5)
    micro_batches = n * draw.randint(2, 3) + (draw.randint(1, n - 1) if "tail" in needs or draw.random() < 0.5 else 0)
    sizes = [draw.randint(2, 9) for _ in range(micro_batches)] if ragged else [6] * micro_batches
    return UnseenLoop(
        number,
        planted,
        form,
        loss=draw.choice(list(LOSSES)),
        optimizer=draw.choice(list(OPTIMIZERS)),
        n=n,
        sizes=sizes,
        limit=draw.choice([0.05, 1.0, 100.0]),
        convolution=draw.random() < 0.3,
    )
