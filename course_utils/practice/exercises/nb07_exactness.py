"""The exercise of notebook 07: one update of a window, with class weights and one clip, judged on a real model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, vector_to_parameters
from torch.optim import Optimizer

from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, close, compare, rounded
from course_utils.practice.updates import CLIP_RTOL, ROUNDED, adam, alone, judge_model, sgd

Window = Sequence[tuple[Tensor, Tensor]]

CLASS_WEIGHTS = torch.tensor([1.0, 20.0, 0.5, 3.0], dtype=torch.float64)
CLASSES = torch.tensor([0, 0, 2, 0, 1, 3, 1, 1, 3, 3, 2, 3, 2, 2, 0, 2])  # rare and frequent ones lie together
LOOSE = 1e6  # no gradient has such a norm: a clip that does nothing
OLD = 0.5  # the entries of gradients that an earlier backward pass has left
STEEP = 100.0  # times larger inputs: gradients that are larger than any limit that somebody may have written out
SAME_RTOL = 2e-6  # two gradients that are clipped to one limit


@exercise(
    "weighted_window",
    hints={
        "token-weights": "The micro-batches count in the wrong proportion. What is this mean divided by? See Step 4.",
        "loss-scale": "The gradient has the right direction and the wrong length, before any clip. Check your factor.",
        "missing-class-weights": "Which of your calls knows class_weights, and which should?",
        "wrong-value": "Compute the loss of one micro-batch with F.cross_entropy alone. Is yours the same number?",
        "clip-timing": "How often does your loop clip, and what has been added up at that moment? See Step 6.",
        "clip-limit": "Which number limits which norm? Compare the arguments of your clip with the task.",
        "stale-gradients": "The model may arrive with gradients. What is in .grad before the first backward pass?",
        "held-graphs": "How many graphs are alive at once? Every backward() can free one.",
    },
)
def _weighted_window(answer: Callable) -> str:
    # Without a clip first: with one, a wrong scale would not show. Then old gradients, then clips that act.
    for sizes in ((4,), (4, 4, 4, 4)):
        _judge(answer, sizes, make_optimizer=partial(torch.optim.SGD, lr=1e-4), steep=STEEP)
    for sizes in ((4, 4, 4, 4), (6, 1, 3, 2)):
        _judge(answer, sizes)
    _judge(answer, (4, 4, 4, 4), dirty=True)
    for sizes in ((4, 4, 4, 4), (6, 1, 3, 2)):
        for clip in (0.3, 1.05):
            _judge(answer, sizes, clip)
    _judge(answer, (6, 1, 3, 2), make_optimizer=adam)
    return (
        "one, equal and ragged micro-batches, old gradients, clips that act and clips that do not, SGD and Adam: every "
        "update is that of one batch."
    )


def _judge(
    answer: Callable,
    sizes: Sequence[int],
    clip: float = 0.0,
    dirty: bool = False,
    make_optimizer: Callable = sgd,
    steep: float = 1.0,
) -> None:
    """Judges two windows; `clip` is the limit, as a multiple of the first gradient's norm, or 0 for none."""
    start, windows = mlp(3, 5, 4).double(), [_window(sizes, turn, steep) for turn in range(2)]
    with torch.no_grad():
        start[0].weight /= steep
    max_norm = clip * float(_gradient(_flat(start.parameters()), windows[0]).norm()) or LOOSE
    case = f"micro-batches of {list(sizes)} samples, "
    case += f"max_norm {clip} times the window's norm" if clip else "no clip that acts"
    case += ", old gradients in the model" if dirty else ""
    weights, want, got, backwards = [], [], [], []  # the weights before each window; each step's gradient
    changes = []  # how each call changed what it was given

    def correct(model: nn.Module, optimizer: Optimizer) -> None:
        for window in windows:
            weights.append(_flat(model.parameters()))
            optimizer.zero_grad()
            _loss(model, _joined(window)).backward()
            clip_grad_norm_(model.parameters(), max_norm)
            want.append(_gradients(model))
            optimizer.step()

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        for p in model.parameters():
            p.grad = torch.full_like(p, OLD) if dirty else None
        optimizer.register_step_post_hook(lambda *_: got.append(_gradients(model)))
        model[0].weight.register_post_accumulate_grad_hook(backwards.append)
        for window in windows:
            given, class_weights = [(x.clone(), y.clone()) for x, y in window], CLASS_WEIGHTS.clone()
            answer(model, given, class_weights, optimizer, max_norm)
            changes.append(changed(given, window, "the window"))
            changes.append(changed(class_weights, CLASS_WEIGHTS, "the class weights"))

    largest = max(windows[0], key=lambda batch: len(batch[1]))
    one = alone(lambda model, optimizer: answer(model, [largest], CLASS_WEIGHTS.clone(), optimizer, LOOSE))
    try:
        judge_model(train, correct, start, make_optimizer, case, one)
    except Mistake as mistake:
        if mistake.verdict.bug == "wrong-value":
            _judge_steps(got, len(backwards), len(windows), case)
            for k, window in enumerate(windows):
                skips = len(backwards) < len(windows) * len(window)
                bugs = _known_bugs(got, k, weights[k], window, max_norm, dirty, skips)
                compare(got[k], want[k], case, bugs, CLIP_RTOL)
        raise
    for how in filter(None, changes):
        raise Mistake("changed-input", f"{case}: the update is right, but {how}.")


def _judge_steps(got: list[Tensor], backwards: int, want: int, case: str) -> None:
    if not got and not backwards:
        hint = "no backward pass and no step has run yet, one update is expected for each window"
        raise Mistake("not-attempted", f"{case}: {hint}.")
    if not got:
        raise Mistake("leftover-gradients", f"{case}: a backward pass has run and optimizer.step() has not.")
    if len(got) != want:
        raise Mistake("irregular-window", f"{case}: {len(got)} steps for {want} windows, one each was expected.")
    if not backwards and not any(gradient.any() for gradient in got):
        raise Mistake("empty-step", f"{case}: a step has run, and no backward pass.")


def _known_bugs(
    got: list[Tensor], k: int, weights: Tensor, window: Window, max_norm: float, dirty: bool, skips: bool
) -> Iterator[tuple[str, str, Tensor]]:
    """The gradients that known bugs would give at step `k`; the last entries fit any gradient.

    `skips` says that there were fewer backward passes than micro-batches.
    """
    held, whole, update = got[k], _gradient(weights, window), f"update {k + 1}"
    norm, limit = float(held.norm()), min(float(whole.norm()), max_norm)
    if not held.isfinite().all():
        yield "wrong-value", f"the gradient of {update} is not finite", held
    if not held.any():
        yield (
            "discarded-gradients",
            f"{update} found no gradient: it was zeroed before step(), or multiplied by 0",
            held,
        )
    if max_norm == LOOSE and float((held - whole).norm()) < ROUNDED * norm:
        yield "low-precision", f"the gradient of {update} is right to a few digits only: a factor is rounded", held
    if dirty:
        yield "stale-gradients", f"gradients that were there before are still in {update}", whole + OLD
    if k:
        yield "stale-gradients", f"{update} also holds the gradient of the update before", whole + got[k - 1]
    yield from _wrong_limits(got, k, whole, window, max_norm)
    yield "loss-scale", f"the gradient of {update} is {norm / limit:.3g} times what it should be", _of_norm(norm, whole)

    means = [_gradient(weights, [batch]) for batch in window]
    shares = _shares([float(CLASS_WEIGHTS[y].sum()) for _, y in window])  # what each mean was divided by
    parts = [mean * share for mean, share in zip(means, shares, strict=True)]
    for bug, hint, wrong in (
        *_wrong_shares(means, shares, weights, window),
        *_wrong_clips(means, parts, max_norm),
        *_wrong_factors(held, parts, skips, scale=max_norm == LOOSE),
    ):
        yield bug, f"{hint} ({update})", _of_norm(norm, wrong)
    if any(float(gradient.norm()) > max_norm for gradient in (whole, *parts)):
        cosine = float(F.cosine_similarity(held, whole, dim=0))
        hint = f"without a clip that acts it was correct; now the direction of {update} is off, cosine {cosine:.3f}"
        yield "clip-timing", hint, held
    samples = sum(len(y) for _, y in window)
    yield "wrong-value", f"the gradient of {update} is not that of one batch of all {samples} samples", held


def _wrong_limits(
    got: list[Tensor], k: int, whole: Tensor, window: Window, max_norm: float
) -> Iterator[tuple[str, str, Tensor]]:
    """The right gradient, clipped to something else than `max_norm`."""
    held, same, update = got[k], _of_norm(float(got[k].norm()), whole), f"update {k + 1}"
    norm, wants = float(held.norm()), float(whole.norm())
    if wants > max_norm:
        hint = f"{update} has the norm {norm:.3g}, which is above max_norm {max_norm:.3g}: not clipped, or too late"
        yield "clip-timing", hint, whole
        divisors = float(sum(CLASS_WEIGHTS[y].sum() for _, y in window)), sum(len(y) for _, y in window)
        if any(close(norm, max_norm / divisor, CLIP_RTOL) for divisor in divisors):
            yield "clip-timing", f"{update} has the norm {norm:.3g}: clipped first, and divided then", same
        yield "clip-limit", f"{update} is clipped to the norm {norm:.3g} instead of max_norm {max_norm:.3g}", same
        places = [p.numel() for p in mlp(3, 5, 4).parameters()]
        pairs = list(zip(held.split(places), whole.split(places), strict=True))
        pieces = torch.cat([_of_norm(float(own.norm()), piece) for own, piece in pairs])
        yield (
            "clip-limit",
            f"{update}: some parameters are clipped more than others: clip their common norm, once",
            pieces,
        )
    if close(norm, max_norm, CLIP_RTOL):
        yield "clip-limit", f"{update} had a smaller norm than max_norm and is scaled up to it", same
    if norm < wants and all(close(float(other.norm()), norm, SAME_RTOL) for other in got):
        hint = f"every step has the norm {norm:.3g}: it is clipped to that number instead of max_norm {max_norm:.3g}"
        yield "clip-limit", hint, same
    entry = float(held.abs().max())
    yield (
        "clip-limit",
        f"every entry is clipped to {entry:.3g}, which is no limit of the norm",
        whole.clamp(-entry, entry),
    )


def _wrong_factors(held: Tensor, parts: list[Tensor], skips: bool, scale: bool) -> Iterator[tuple[str, str, Tensor]]:
    """By how much each micro-batch counts, if that explains the gradient; `scale` if only a wrong scale would do so."""
    matrix = torch.stack(parts, 1)
    factors = torch.linalg.lstsq(matrix, held[:, None]).solution[:, 0]
    missing = [place for place, factor in enumerate(factors.abs(), start=1) if factor < 1e-6 * factors.abs().max()]
    if missing and skips:
        yield "missing-backward", f"micro-batches {missing} never get a backward pass", matrix @ factors
    if missing:
        yield "discarded-gradients", f"micro-batches {missing} are missing: they were zeroed", matrix @ factors
    if scale:
        counts = rounded(factors.tolist())
        yield "token-weights", f"the micro-batches count {counts} times what they should", matrix @ factors


def _wrong_shares(
    means: list[Tensor], shares: list[float], weights: Tensor, window: Window
) -> Iterator[tuple[str, str, Tensor]]:
    should = f"and should count by what their means were divided by, {rounded(shares)}"
    plain = [_gradient(weights, [batch], torch.ones_like(CLASS_WEIGHTS)) for batch in window]
    for counts, what in (([len(y) for _, y in window], "samples"), ([1] * len(window), "micro-batches")):
        hint = f"the micro-batches count by their {what}, {rounded(_shares(counts))}, {should}"
        yield "token-weights", hint, sum(mean * count for mean, count in zip(means, counts, strict=True))
        without = sum(mean * count for mean, count in zip(plain, counts, strict=True))
        yield "missing-class-weights", "this is the gradient of losses without class weights", without
    twice = sum(mean * share**2 for mean, share in zip(means, shares, strict=True))
    yield "token-weights", "each micro-batch is multiplied by its class weights twice", twice
    half = sum(mean * share for mean, share in zip(plain, shares, strict=True))
    yield "missing-class-weights", "the class weights are in the shares and not in the losses", half


def _wrong_clips(means: list[Tensor], parts: list[Tensor], max_norm: float) -> Iterator[tuple[str, str, Tensor]]:
    after = before = torch.zeros_like(parts[0])
    for part in parts:
        after, before = _clipped(after + part, max_norm), _clipped(before, max_norm) + part
    ratios = [_clipped(mean, max_norm).norm() / mean.norm() for mean in means]
    for what, wrong in (
        ("the sum is clipped after each backward pass", after),
        ("the clip comes before the backward pass, so the last gradient is not clipped", before),
        ("the sum is clipped before each backward pass as well", _clipped(before, max_norm)),
        ("each micro-batch's gradient is clipped on its own", sum(_clipped(part, max_norm) for part in parts)),
        ("each mean's gradient is clipped", sum(part * ratio for part, ratio in zip(parts, ratios, strict=True))),
    ):
        yield "clip-timing", f"{what}. Clip once, when all of the window has been added up", wrong


def _window(sizes: Sequence[int], turn: int, steep: float) -> Window:
    classes = CLASSES.roll(5 * turn)[: sum(sizes)]
    x = steep * (torch.randn(sum(sizes), 3, dtype=torch.float64) + classes[:, None])
    return list(zip(x.split(list(sizes)), classes.split(list(sizes)), strict=True))


def _joined(window: Window) -> tuple[Tensor, ...]:
    return tuple(torch.cat(parts) for parts in zip(*window, strict=True))


def _shares(counts: Sequence[float]) -> list[float]:
    return [count / sum(counts) for count in counts]


def _loss(model: nn.Module, batch: tuple[Tensor, ...], class_weights: Tensor = CLASS_WEIGHTS) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, weight=class_weights)


def _gradient(weights: Tensor, window: Window, class_weights: Tensor = CLASS_WEIGHTS) -> Tensor:
    """The gradient of one batch of all the window's samples, at these weights."""
    model = mlp(3, 5, 4).double()
    vector_to_parameters(weights.clone(), model.parameters())
    return _flat(torch.autograd.grad(_loss(model, _joined(window), class_weights), list(model.parameters())))


def _gradients(model: nn.Module) -> Tensor:
    return _flat(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _clipped(gradient: Tensor, max_norm: float) -> Tensor:
    return _of_norm(min(float(gradient.norm()), max_norm), gradient)


def _of_norm(norm: float, gradient: Tensor) -> Tensor:
    return gradient * (norm / max(float(gradient.norm()), 1e-12))
