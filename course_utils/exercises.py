"""The exercises' judges: each runs a learner's function, compares it with the right one and names the bug that it shows.

Every judge takes one function and gives a `Verdict`. A wrong answer never raises here: what it does wrong is the
answer. Training loops are judged on a `Tally`, whose `.grad` says how much every item counts in each update, and then
on a real model, every parameter.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_utils.loops import windows
from course_utils.models import Tally, mlp


@dataclass(frozen=True)
class Verdict:
    """What a judge found: `bug` names the class of the mistake, and is empty when the answer is right."""

    bug: str
    message: str

    @property
    def passed(self) -> bool:
        return not self.bug


class _Found(Exception):
    """A mistake has been found; carries its verdict out of the cases of a judge."""

    def __init__(self, bug: str, message: str):
        self.verdict = Verdict(bug, message)


def judge(name: str, answer: Callable) -> Verdict:
    """Judges `answer` as the solution of the exercise `name`.

    **Raises:** `ValueError` for a name that no exercise has. Never because of the answer.

    >>> judge("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h)).passed
    True
    """
    if name not in JUDGES:
        raise ValueError(f"no exercise is called {name!r}, only {', '.join(JUDGES)}")
    if not callable(answer):
        return Verdict("not-a-function", f"expected a function, got {answer!r} ({type(answer).__name__}).")
    random_state = torch.get_rng_state()
    try:
        return Verdict("", JUDGES[name](answer))
    except _Found as found:
        return found.verdict
    except Exception as error:
        return Verdict("raises", f"your function raised {type(error).__name__}: {error}")
    finally:
        torch.set_rng_state(random_state)


# Exercise of notebook 01: a derivative by finite differences.


def _slope(answer: Callable) -> str:
    cases = [(lambda w: w**3, lambda w: 3 * w**2, w) for w in (-1.5, 0.5, 2.0)]
    cases += [(lambda w: 5.0 - 2.0 * w, lambda w: -2.0, 1.0), (lambda w: w**2, lambda w: 2 * w, 0.0)]
    for f, derivative, w in cases:
        for h in (1e-2, 1e-3):
            right, got = derivative(w), _number(answer(f, w, h))
            if abs(got - right) <= 2 * h**2:
                continue
            case = f"at w = {w} with h = {h} the slope is {right:.6g}, your function says {got:.6g}"
            if any(abs(got / run - right) <= 2 * h**2 for run in (2 * h, h**2, 4 * h**2)):
                raise _Found("no-run", f"{case}: the difference has to be divided by the distance 2h of the points.")
            if abs(got + right) <= 2 * h**2:
                raise _Found("wrong-sign", f"{case}: the sign is turned round.")
            if right and abs(got / right - 2) < 0.1:
                raise _Found("half-distance", f"{case}, twice as much: from w - h to w + h the distance is 2h, not h.")
            if right and abs(got / right - 0.5) < 0.1:
                raise _Found("double-distance", f"{case}, half as much: the distance that you divide by is too long.")
            if abs(got - right) < 10 * h:
                raise _Found("one-sided", f"{case}: off by about h. Look as far to the left of w as to the right.")
            raise _Found("wrong-value", f"{case}.")
    return "5 functions, 2 distances: the slope is right to the order of h squared."


# Exercise of notebook 01: the backward of a product in the autograd of 40 lines.


class _Number:
    def __init__(self, data: float, grad: float = 0.0):
        self.data, self.grad = data, grad


def _product_backward(answer: Callable) -> str:
    for x, y, upstream, before in ((2.0, 5.0, 1.0, 0.0), (2.0, 5.0, 3.0, 0.0), (2.0, 5.0, 3.0, 7.0)):
        a, b, out = _Number(x, before), _Number(y, before), _Number(x * y, upstream)
        answer(a, b, out)
        got, right = (_number(a.grad), _number(b.grad)), (before + y * upstream, before + x * upstream)
        if got == right:
            continue
        case = f"a = {x}, b = {y}, out.grad = {upstream}, both .grad = {before} before: expected {right}, got {got}"
        if got == (before, before):
            raise _Found("not-attempted", f"{case}: neither .grad has changed yet.")
        if before and got == (right[0] - before, right[1] - before):
            raise _Found("assigns", f"{case}. What was in .grad is lost: add to it, a value may be used twice.")
        if got == (before + x * upstream, before + y * upstream):
            raise _Found("swapped", f"{case}. The factors are swapped: da of a * b is b.")
        if got == (before + y, before + x):
            raise _Found("no-chain-rule", f"{case}. The slope of what comes after, out.grad, must multiply.")
        raise _Found("wrong-value", f"{case}.")
    a, out = _Number(3.0), _Number(9.0, 1.0)
    answer(a, a, out)
    if _number(a.grad) != 6.0:
        raise _Found("assigns", f"a * a at a = 3 has slope 6, got {a.grad}: the second use must add to the first.")
    return "distinct factors, a later slope, an earlier gradient, and a * a: all right."


# Exercise of notebook 02: a training loop with one update per batch.


def _train(answer: Callable) -> str:
    _judge_loop(
        lambda model, batches, loss_fn, optimizer, _n: answer(model, batches, loss_fn, optimizer), n_values=(1,)
    )
    return "a clean and a dirty start, 2 epochs, SGD and Adam: every update holds its own batch and nothing else."


# Exercise of notebook 02b: the guard that a window starts clean.


def _dirty(answer: Callable) -> str:
    inf, nan = float("inf"), float("nan")
    for held, is_dirty, bug, hint in (
        ((3.0, 4.0), True, "misses-gradients", "it holds a gradient of an earlier backward"),
        (None, False, "crashes-on-none", "its .grad is None, so there is nothing to look at"),
        ((0.0, 0.0), False, "zeros-are-clean", "zeros add nothing to the next backward"),
        ((2.0, -2.0), True, "signs-cancel", "its entries add up to 0 but are not 0"),
        ((0.0, nan), True, "misses-nan", "a nan stays in every later sum"),
        ((-inf, 0.0), True, "misses-inf", "an infinity stays in every later sum"),
        ((1e-30, 0.0), True, "misses-small", "small is not zero"),
    ):
        model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)).double()
        model[1].weight.requires_grad_(False)
        model[0].weight.grad = None if held is None else torch.tensor([held], dtype=torch.float64)
        before = None if held is None else model[0].weight.grad.clone()
        case = f"a model whose 0.weight.grad is {None if held is None else list(held)}"
        try:
            names = answer(model)
        except Exception as error:
            bug = "crashes-on-none" if held is None or isinstance(error, AttributeError) else "raises"
            raise _Found(bug, f"{case}: your function raised {type(error).__name__}: {error}") from error
        if names is None:
            raise _Found("not-attempted", "your function returned None; it should return a list of names.")
        after = model[0].weight.grad
        if (after is None) != (before is None) or (after is not None and not torch.equal(*map(_bits, (after, before)))):
            raise _Found("changes-gradients", f"{case}: a guard looks, it must not change .grad.")
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(x, str) for x in names):
            raise _Found("wrong-type", f"{case}: expected a list of parameter names, got {names!r}.")
        if list(names) != (["0.weight"] if is_dirty else []):
            expected = "['0.weight']" if is_dirty else "[]"
            raise _Found(bug, f"{case}: expected {expected}, got {list(names)!r}; {hint}.")
    return "gradients, None, frozen, zeros, signs that cancel, nan, infinity: the guard sees what is there."


def _bits(gradient: Tensor) -> Tensor:
    return gradient.view(torch.int64)


# Exercises of notebook 03 and 03b: gradient accumulation.


def _accumulate(answer: Callable) -> str:
    _judge_loop(answer, n_values=(2, 4, 1, 100))
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, a dirty start, SGD and Adam: "
        "every item counts as in the large batch."
    )


def _logged_loss(answer: Callable) -> str:
    for sizes, n in (((4, 4), 2), ((4, 4, 4, 4), 2), ((4, 4, 4), 2), ((6, 2), 2), ((6, 2, 1), 2)):
        batches = [torch.full((size,), float(3**place), dtype=torch.float64) for place, size in enumerate(sizes)]
        model = nn.Linear(1, 1).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        got = answer(model, batches, lambda model, batch: batch.mean() + 0 * model.weight.sum(), optimizer, n)
        if got is None:
            raise _Found("not-attempted", "your function returned None; it should return one loss per update.")
        groups = list(windows(batches, n))
        right = [float(torch.cat(group).mean()) for group in groups]
        got = [_number(loss) for loss in got]
        case = f"micro-batches of {list(sizes)} items, N = {n}: expected {_round(right)}, got {_round(got)}"
        if len(got) == len(right) and _close(got, right):
            continue
        means = [[float(batch.mean()) for batch in group] for group in groups]
        if len(got) == len(batches):
            raise _Found("per-micro-batch", f"{case}. One number per update is asked for, not one per micro-batch.")
        if len(got) != len(right):
            raise _Found("leftover-gradients", f"{case}. The number of updates is not right.")
        for bug, wrong, hint in (
            ("last-only", [group[-1] for group in means], "it is the loss of the last micro-batch alone"),
            ("last-only", [group[-1] / n for group in means], "it is the last micro-batch's loss after the division"),
            (
                "divided-by-n",
                [sum(group) / n for group in means],
                "a short window is divided by N, not by its own count",
            ),
            ("divided-by-n", [sum(group) / n**2 for group in means], "the loss has been divided by N twice"),
            ("divided-by-n", [loss / n for loss in right], "the loss has been divided by N once more"),
            ("not-divided", [sum(group) for group in means], "the losses are added but not averaged"),
            (
                "token-weights",
                [sum(group) / len(group) for group in means],
                "small micro-batches count like large ones",
            ),
        ):
            if _close(got, wrong):
                raise _Found(bug, f"{case}: {hint}.")
        raise _Found("wrong-value", f"{case}.")
    return "equal, short and ragged windows: the loss that is logged is the mean over the items of its window."


Loop = Callable[[nn.Module, Sequence, Callable, torch.optim.Optimizer, int], object]


def _reference(
    model: nn.Module, batches: Sequence, loss_fn: Callable, optimizer: torch.optim.Optimizer, n: int
) -> None:
    """One large batch per window: no accumulation at all, hence nothing that could be wrong with it."""
    for window in windows(batches, n):
        first = window[0]
        large = tuple(map(torch.cat, zip(*window, strict=True))) if isinstance(first, tuple) else torch.cat(window)
        optimizer.zero_grad()
        loss_fn(model, large).backward()
        optimizer.step()
    optimizer.zero_grad()


def _judge_loop(answer: Loop, n_values: Sequence[int]) -> None:
    for sizes in ((2, 2, 2, 2), (2, 2, 2, 2, 2, 2), (4, 2, 1, 3, 2)):
        for n in n_values:
            _judge_counts(answer, sizes, n, dirty=False)
    _judge_counts(answer, (2, 2, 2, 2), n_values[0], dirty=True)
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)):
        for n in n_values:
            _judge_parameters(answer, make, n)


def _judge_counts(answer: Loop, sizes: Sequence[int], n: int, dirty: bool) -> None:
    right = _counts(_reference, sizes, n, dirty)
    got = _counts(answer, sizes, n, dirty)
    case = f"micro-batches of {list(sizes)} items, N = {n}" if n > 1 else f"batches of {list(sizes)} items"
    case += ", and a gradient left by an earlier backward" if dirty else ""
    if len(got) == len(right) and all(torch.allclose(*pair, rtol=1e-9, atol=1e-12) for pair in zip(got, right)):  # noqa: B905
        return
    raise _Found(*_diagnose(got, right, sizes, n, case, dirty))


def _counts(loop: Loop, sizes: Sequence[int], n: int, dirty: bool) -> list[Tensor]:
    """How much each item counts in each update, over two epochs of the same loop."""
    tally = Tally(sum(sizes)).double()
    if dirty:
        tally.weight.grad = torch.full_like(tally.weight, 7.0)
    optimizer = torch.optim.SGD(tally.parameters(), lr=0.5)
    rows: list[Tensor] = []

    def note(*_) -> None:
        grad = tally.weight.grad
        rows.append(torch.zeros(sum(sizes), dtype=torch.float64) if grad is None else grad.detach().clone())

    optimizer.register_step_pre_hook(note)
    for _ in range(1 if dirty else 2):
        batches = list(torch.arange(sum(sizes)).split(list(sizes)))
        loop(tally, batches, lambda model, batch: model(batch).mean(), optimizer, n)
    return rows


def _diagnose(
    got: list[Tensor], right: list[Tensor], sizes: Sequence[int], n: int, case: str, dirty: bool
) -> tuple[str, str]:
    per_epoch, epochs = len(right) // (1 if dirty else 2), 1 if dirty else 2
    starts = torch.tensor([0, *sizes]).cumsum(0)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    used = [sorted(set(owner[row != 0].tolist())) for row in got]
    if not got:
        return "not-attempted", f"{case}: no optimizer.step() has run yet, where {len(right)} were expected."
    if not any(row.any() for row in got):
        return "discarded-gradients", (
            f"{case}: every one of {len(got)} steps found no gradient. Something zeroes between backward and step."
        )
    if dirty and torch.allclose(got[0] - right[0], torch.full_like(got[0], 7.0)):
        return "stale-gradients", (
            f"{case}: the old gradient entered the first update. Zero once before the first backward, too."
        )
    counts = f"micro-batches per update: {[len(u) for u in used]}, expected {_per_update(len(sizes), n) * epochs}"
    if n > 1 and len(got) == len(sizes) * epochs and len(got) != len(right):
        return "irregular-window", f"{case}: a step after every micro-batch; {counts}."
    if len(got) < len(right):
        lost = sorted(set(range(len(sizes))) - set(sum(used[-per_epoch:], [])))
        return "leftover-gradients", (
            f"{case}: {len(got)} updates in place of {len(right)}; {counts}. The last, short window never gets its step"
            + (f" (micro-batches {[k + 1 for k in lost]} of the last epoch)." if lost else ".")
        )
    if len(got) > len(right) or (len(used[0]) < len(_first(sizes, n)) and used[0] == [0]):
        return "irregular-window", f"{case}: {counts}. The test for the end of a window is off by one."
    for k, (row, want) in enumerate(zip(got, right, strict=False)):
        mine = want != 0
        # What is not of this window, or was counted once more than it should be.
        if row[~mine].any() or (k >= per_epoch and torch.allclose(row, want + got[k - per_epoch])):
            strangers = sorted({int(owner[i]) + 1 for i in torch.nonzero(row * ~mine).flatten()})
            return "stale-gradients", (
                f"{case}: update {k + 1} still holds gradients of earlier updates (micro-batches {strangers})."
            )
    for k, (row, want) in enumerate(zip(got, right, strict=False)):
        window = sorted(set(owner[want != 0].tolist()))
        present = sorted(set(owner[row != 0].tolist()))
        if present != window:
            return "discarded-gradients", (
                f"{case}: update {k + 1} holds micro-batches {[p + 1 for p in present]} of {[w + 1 for w in window]}. "
                "The rest was zeroed inside the window."
            )
        part = slice(int(starts[window[0]]), int(starts[window[-1] + 1]))
        ratio = row[part] / want[part]
        if torch.allclose(ratio, ratio[:1].expand_as(ratio)) and abs(float(ratio[0]) - 1) > 1e-9:
            factor = float(ratio[0])
            if k == per_epoch - 1 and k > 0:
                return "loss-scale", (
                    f"{case}: the last, short window is {factor:.3g} times what it should be: divide by what it holds, "
                    "not by N."
                )
            return "loss-scale", f"{case}: update {k + 1} is {factor:.3g} times what it should be."
        if not torch.allclose(row, want, rtol=1e-9, atol=1e-12):
            weights = [round(float(row[int(starts[w])] / want[int(starts[w])]), 3) for w in window]
            bug = "token-weights" if len(set(sizes)) > 1 else "loss-scale"
            return bug, (
                f"{case}: in update {k + 1} the items of its micro-batches count {weights} times as much as they should: "
                "weigh each micro-batch by the items that it holds."
            )
    return "wrong-value", f"{case}: the updates are not those of the large batch."


def _per_update(micro_batches: int, n: int) -> list[int]:
    return [len(window) for window in windows(range(micro_batches), n)]


def _first(sizes: Sequence[int], n: int) -> list:
    return next(windows(range(len(sizes)), n))


def _judge_parameters(answer: Loop, make: Callable, n: int) -> None:
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(size, 3, generator=generator, dtype=torch.float64), torch.randn(size, 2, generator=generator, dtype=torch.float64))
        for size in (4, 4, 4, 2, 3)
    ]  # fmt: skip
    ours, theirs = mlp(3, 5, 2).double(), None
    theirs = copy.deepcopy(ours)
    for model, loop in ((ours, _reference), (theirs, answer)):
        optimizer = make(model.parameters())
        for _ in range(2):
            loop(model, batches, lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]), optimizer, n)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if not torch.allclose(p, q, rtol=1e-9, atol=1e-10):
            gap = float((p - q).detach().abs().max())
            raise _Found(
                "wrong-value",
                f"on a real model, N = {n}, {type(optimizer).__name__}: parameter {name} ends up {gap:.2g} off.",
            )


def _number(value: object) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    if value is None or value is Ellipsis:
        raise _Found("not-attempted", f"your function returned {value!r}; it should return a number.")
    raise _Found("wrong-type", f"expected a number, got {value!r} ({type(value).__name__}).")


def _close(got: Sequence[float], want: Sequence[float]) -> bool:
    return all(abs(g - w) <= 1e-9 * max(1.0, abs(w)) for g, w in zip(got, want, strict=True))


def _round(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]


JUDGES: dict[str, Callable[[Callable], str]] = {
    "slope": _slope,
    "product_backward": _product_backward,
    "train": _train,
    "dirty": _dirty,
    "accumulate": _accumulate,
    "logged_loss": _logged_loss,
}
