"""The exercises' judges: each runs a learner's function, compares it with the right one and names the bug it shows.

Every judge takes one function and gives a `Verdict`. A wrong answer never raises here: what it does wrong is the
answer. Training loops are judged on a `Tally`, whose `.grad` says how much every item counts in each update, and then
on a real model, every parameter.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from reprlib import repr

import torch
from torch import Tensor, nn

from course_utils.loops import windows
from course_utils.memory import saved_bytes
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
        return Verdict("not-a-function", f"expected a function, got {repr(answer)} ({type(answer).__name__}).")
    with torch.random.fork_rng(devices=()), torch.enable_grad():
        torch.default_generator.manual_seed(1)
        try:
            return Verdict("", JUDGES[name](answer))
        except _Found as found:
            return found.verdict
        except (Exception, SystemExit) as error:
            return Verdict("raises", f"your function raised {type(error).__name__}: {error}")


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


# Exercise of notebook 02c: the guard that a window starts clean.


def _dirty(answer: Callable) -> str:
    inf, nan = float("inf"), float("nan")
    for held, is_dirty, bug, hint in (
        (None, False, "none-is-clean", "where .grad is None there is nothing to look at"),
        ((0.0, 0.0), False, "zeros-are-clean", "zeros add nothing to the next backward"),
        ((3.0, 4.0), True, "misses-gradients", "it holds a gradient of an earlier backward"),
        ((2.0, -2.0), True, "signs-cancel", "its entries add up to 0 but are not 0"),
        ((0.0, nan), True, "misses-nan", "a nan stays in every later sum"),
        ((-inf, 0.0), True, "misses-inf", "an infinity stays in every later sum"),
        ((1e-30, 0.0), True, "misses-small", "small is not zero"),
    ):
        # A clean parameter before the one that is looked at, and a frozen one, which has no gradient, after it.
        model = nn.Sequential(*(nn.Linear(*sizes, bias=False) for sizes in ((1, 2), (2, 1), (1, 2)))).double()
        model[2].weight.requires_grad_(False)
        if held is not None:
            model[0].weight.grad = torch.zeros_like(model[0].weight)
            model[1].weight.grad = torch.tensor([held], dtype=torch.float64)
        before = None if held is None else model[1].weight.grad.clone()
        case = f"a model whose 1.weight.grad is {None if held is None else list(held)}"
        try:
            names = answer(model)
        except Exception as error:
            bug = "crashes-on-none" if "NoneType" in str(error) else "raises"
            raise _Found(bug, f"{case}: your function raised {type(error).__name__}: {error}") from error
        if names is None:
            raise _Found("not-attempted", "your function returned None; it should return a list of names.")
        after = model[1].weight.grad
        if (after is None) != (before is None) or (after is not None and not torch.equal(*map(_bits, (after, before)))):
            raise _Found("changes-gradients", f"{case}: a guard looks, it must not change .grad.")
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(x, str) for x in names):
            raise _Found("wrong-type", f"{case}: expected a list of parameter names, got {repr(names)}.")
        expected = ["1.weight"] if is_dirty else []
        if list(names) != expected:
            raise _Found(bug, f"{case}: expected {expected}, got {list(names)}; {hint}.")
    return "gradients, None, frozen, zeros, signs that cancel, nan, infinity: the guard sees what is there."


def _bits(gradient: Tensor) -> Tensor:
    return gradient.view(torch.int64)


# Exercise of notebook 02b: where a loop goes that never zeroes.


def _forgotten(answer: Callable) -> str:
    for gradients, lr in (([2.0, -1.0, 0.5, -3.0, 4.0], 0.25), ([1.0, 1.0, 1.0], 0.5), ([3.0], 2.0), ([], 0.1)):
        right, got = _positions(gradients, lr, 1.0), _path(answer, gradients, lr)
        case = f"fresh gradients {gradients}, lr = {lr}: expected {_round(right)}, got {_round(got)}"
        if len(got) == len(right) and _close(got, right):
            continue
        if not got and right:
            raise _Found("not-attempted", "your function returned no position; it should return one after each update.")
        for bug, wrong, hint in (
            ("zeroed", _positions(gradients, lr, 0.0), "each update uses only its own gradient, as if zeroed"),
            ("uphill", [-w for w in right], "an update goes against the gradient, so the sum is subtracted"),
            ("off-by-one", [0.0, *right], "the start is no update; the first position is the one after update 1"),
            ("off-by-one", [0.0, *right[:-1]], "backward comes before step, so the fresh gradient is in the sum"),
            ("off-by-one", right[:-1], "the last update is missing"),
            ("off-by-one", right[1:], "the first update is missing"),
        ):
            if len(got) == len(wrong) and _close(got, wrong):
                raise _Found(bug, f"{case}: {hint}.")
        impulse = [0.0, *_path(answer, [1.0, 0.0, 0.0, 0.0, 0.0], 1.0)]
        moves = [before - after for before, after in pairwise(impulse)]
        if len(moves) == 5 and _close(moves[:1], [1.0]) and all(0 <= move < 1 for move in moves[2:]):
            raise _Found(
                "decays",
                f"{case}. After the gradients 1, 0, 0, 0, 0 it moves by {_round(moves)}: nothing takes an old gradient "
                "out of .grad, so it counts in full in every later update.",
            )
        raise _Found("wrong-value", f"{case}.")
    return "5, 3, 1 and 0 updates: each one uses the sum of all gradients so far, in full."


def _positions(gradients: Sequence[float], lr: float, momentum: float) -> list[float]:
    w, held, positions = 0.0, 0.0, []
    for gradient in gradients:
        held = momentum * held + gradient
        w -= lr * held
        positions.append(w)
    return positions


def _path(answer: Callable, gradients: Sequence[float], lr: float) -> list[float]:
    got = answer(list(gradients), lr)
    if got is None or got is Ellipsis:
        raise _Found("not-attempted", f"your function returned {got}; it should return a list of positions.")
    try:
        got = list(islice(got, len(gradients) + 2))
    except TypeError:
        kind = type(got).__name__
        raise _Found("wrong-type", f"expected a list with one position per update, got a {kind}.") from None
    return [_number(w) for w in got]


# Exercises of notebook 03 and 03b: gradient accumulation.


def _accumulate_equal(answer: Callable) -> str:
    for n in (2, 4, 1):
        _judge_counts(answer, (2,) * 4 * n, n)
    _judge_counts(answer, (2, 2, 2, 2), 2, dirty=True)
    for n in (2, 4):
        _judge_parameters(answer, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), n, sizes=(4,) * 8)
    return "N = 1, 2 and 4, a clean and a dirty start, a tally and a real model: every window is the large batch."


def _accumulate(answer: Callable) -> str:
    _judge_loop(answer, n_values=(2, 4, 1, 100))
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, a dirty start, SGD and Adam: "
        "every item counts as in the large batch."
    )


def _logged_loss(answer: Callable) -> str:
    for sizes, n in (((4, 4), 2), ((4, 4, 4, 4), 2), ((4, 4, 4), 2), ((6, 2), 2), ((6, 2, 1), 2)):
        batches = [torch.full((size,), 1.3 * 5.0**place, dtype=torch.float64) for place, size in enumerate(sizes)]
        model = nn.Linear(1, 1, bias=False).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        got = answer(model, list(batches), lambda model, batch: batch.mean() + 0 * model.weight.sum(), optimizer, n)
        if got is None or got == []:
            raise _Found("not-attempted", f"your function returned {got}; it should return one loss per update.")
        groups = list(windows(batches, n))
        right = [float(torch.cat(group).mean()) for group in groups]
        if not isinstance(got, Iterable):
            raise _Found("wrong-type", f"expected a list of losses, one per update, got {repr(got)}.")
        got = [_number(loss) for loss in got]
        case = f"micro-batches of {list(sizes)} items, N = {n}: expected {_round(right)}, got {_round(got)}"
        if len(got) == len(right) and _close(got, right):
            continue
        means = [[float(batch.mean()) for batch in group] for group in groups]
        if len(got) == len(batches):
            raise _Found("per-micro-batch", f"{case}. One number per update is asked for, not one per micro-batch.")
        if len(got) != len(right):
            bug = "leftover-gradients" if len(got) < len(right) else "irregular-window"
            raise _Found(bug, f"{case}. The number of updates is not right.")
        for bug, wrong, hint in (
            (
                "token-weights",
                [sum(group) / len(group) for group in means],
                "small micro-batches count like large ones",
            ),
            ("last-only", [group[-1] for group in means], "it is the loss of the last micro-batch alone"),
            ("last-only", [group[-1] / n for group in means], "it is the last micro-batch's loss after the division"),
            ("not-reset", accumulate(right), "the sum goes on from one window into the next"),
            ("divided-by-n", [sum(group) / n for group in means], "a short window is divided by N, not by its count"),
            ("divided-by-n", [sum(group) / n**2 for group in means], "the loss has been divided by N twice"),
            ("divided-by-n", [loss / n for loss in right], "the loss has been divided by N once more"),
            ("not-divided", [sum(group) for group in means], "the losses are added but not averaged"),
        ):
            if _close(got, list(wrong)):
                raise _Found(bug, f"{case}: {hint}.")
        raise _Found("wrong-value", f"{case}.")
    _judge_loop(lambda *loop: list(answer(*loop)), n_values=(2, 4, 1, 100), dirty=False)
    return (
        "equal, short and ragged windows: the loss that is logged is the mean over the items of its window, and the "
        "model is trained as by large batches."
    )


Loop = Callable[[nn.Module, Sequence, Callable, torch.optim.Optimizer, int], object]


def _reference(
    model: nn.Module, batches: Sequence, loss_fn: Callable, optimizer: torch.optim.Optimizer, n: int
) -> None:
    """One large batch per window: no accumulation at all, hence nothing that could be wrong with it."""
    for window in windows(batches, n):
        optimizer.zero_grad()
        loss_fn(model, torch.cat(window)).backward()
        optimizer.step()
    optimizer.zero_grad()


def _judge_loop(answer: Loop, n_values: Sequence[int], dirty: bool = True) -> None:
    # Equal sizes first, the values of N in the order given: a lost tail or a tail divided by N then shows as itself.
    equal = [(sizes, n) for n in n_values for sizes in ((2, 2, 2, 2), (2, 2, 2, 2, 2, 2))]
    for sizes, n in equal + [((4, 2, 1, 3, 2), n) for n in n_values]:
        _judge_counts(answer, sizes, n)
    if dirty:
        _judge_counts(answer, (2, 2, 2, 2), n_values[0], dirty=True)
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)):
        for n in n_values:
            _judge_parameters(answer, make, n)


def _judge_counts(answer: Loop, sizes: Sequence[int], n: int, dirty: bool = False) -> None:
    right, _ = _counts(_reference, sizes, n, dirty)
    got, arrived = _counts(answer, sizes, n, dirty)
    rows, wanted = list(chain(*got)), list(chain(*right))
    if len(rows) == len(wanted) and all(map(_same, rows, wanted)):
        return
    case = f"micro-batches of {list(sizes)} items, N = {n}" if n > 1 else f"batches of {list(sizes)} items"
    case += ", and a gradient left by an earlier backward" if dirty else ""
    if dirty and rows and _same(rows[0], wanted[0] + 7):
        hint = "the old gradient entered the first update. Zero once before the first backward, too"
        raise _Found("stale-gradients", f"{case}: {hint}.")
    bug, hint = _diagnose(rows, wanted, len(got[0]), arrived, sizes, n)
    raise _Found(bug, f"{case}: {hint}.")


def _counts(loop: Loop, sizes: Sequence[int], n: int, dirty: bool) -> tuple[list[list[Tensor]], int]:
    """How much each item counts in each update, for each of two epochs, and how often a gradient arrived."""
    tally = Tally(sum(sizes)).double()
    if dirty:
        tally.weight.grad = torch.full_like(tally.weight, 7.0)
    optimizer = torch.optim.SGD(tally.parameters(), lr=0.5)
    epochs: list[list[Tensor]] = []
    arrived: list[Tensor] = []

    def note(*_) -> None:
        grad = tally.weight.grad
        epochs[-1].append(torch.zeros_like(tally.weight) if grad is None else grad.detach().clone())

    optimizer.register_step_pre_hook(note)
    tally.weight.register_post_accumulate_grad_hook(arrived.append)
    for _ in range(2):
        epochs.append([])
        batches = list(torch.arange(sum(sizes)).split(list(sizes)))
        loop(tally, batches, lambda model, batch: model(batch).mean(), optimizer, n)
    return epochs, len(arrived)


def _diagnose(
    rows: list[Tensor], wanted: list[Tensor], in_first_epoch: int, arrived: int, sizes: Sequence[int], n: int
) -> tuple[str, str]:
    """The first bug that the updates show, and how it shows. Updates and micro-batches are counted from 1."""
    groups = list(windows(range(len(sizes)), n))
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    used = [sorted(set(owner[row != 0].tolist())) for row in rows]
    held = f"micro-batches per update: {[len(u) for u in used]}, expected {[len(group) for group in groups] * 2}"

    if not arrived and not rows:
        return "not-attempted", f"no backward and no step has run yet, {len(wanted)} updates are expected"
    if not rows:
        return "leftover-gradients", f"no optimizer.step() has run, {len(wanted)} were expected"
    if not any(used):
        found = f"every one of {len(rows)} steps found no gradient"
        if not arrived:
            return "empty-step", f"{found}, for no backward has run"
        return "discarded-gradients", f"{found}. Something zeroes between backward and step"
    if [] in used:
        return "empty-step", f"update {used.index([]) + 1} found no gradient; {held}"

    first = used[:in_first_epoch]
    if len(first) == len(sizes) > len(groups):
        return "irregular-window", f"a step after every micro-batch; {held}"
    if used[0] != groups[0] and used[0] == list(range(len(used[0]))):
        return "irregular-window", f"the first step comes after {len(used[0])} in place of {len(groups[0])}; {held}"
    if not set(groups[-1]) & set(chain(*first)):
        lost = [place + 1 for place in groups[-1]]
        return "leftover-gradients", f"{held}. The last window of an epoch, micro-batches {lost}, never gets its step"
    if len(first) != len(groups):
        return "irregular-window", f"{len(first)} updates in an epoch in place of {len(groups)}; {held}"

    for k, (row, want) in enumerate(zip(rows, wanted, strict=False)):
        strangers = sorted({int(place) + 1 for place in owner[(row != 0) & (want == 0)]})
        twice = k >= len(groups) and _same(row, want + rows[k - len(groups)])
        if strangers or twice:
            which = f"micro-batches {strangers}" if strangers else "the same micro-batches in the epoch before"
            return "stale-gradients", f"update {k + 1} still holds gradients of earlier updates ({which})"
    if len(rows) != len(wanted):
        return "irregular-window", f"{len(rows)} updates in two epochs in place of {len(wanted)}; {held}"
    for k, (row, want) in enumerate(zip(rows, wanted, strict=True)):
        group = groups[k % len(groups)]
        if used[k] != group:
            which = f"micro-batches {[place + 1 for place in used[k]]} of {[place + 1 for place in group]}"
            return "discarded-gradients", f"update {k + 1} holds {which}: the rest was zeroed inside the window"
        factors = [float((row / want)[owner == place][0]) for place in group]
        if _close(factors, [1.0] * len(group)):
            continue
        if _close(factors, factors[:1] * len(group)):
            short = len(group) < len(groups[0])
            which = f"update {k + 1}" + (", of a short window," if short else "")
            mend = ": divide by what it holds, not by N" if short else ""
            return "loss-scale", f"{which} is {factors[0]:.3g} times what it should be{mend}"
        found = f"in update {k + 1} the items of its micro-batches count {_round(factors)} times what they should"
        if len(set(sizes)) == 1:
            return "loss-scale", f"{found}: all of them must count the same"
        return "token-weights", f"{found}: weigh each micro-batch by the items that it holds"
    return "wrong-value", "the updates are not those of the large batch"


def _judge_parameters(answer: Loop, make: Callable, n: int, sizes: Sequence[int] = (4, 4, 4, 2, 3)) -> None:
    """Every parameter of a real model, and that no two micro-batches' activations are in memory at once."""
    batches = [torch.randn(size, 3 + 2, dtype=torch.float64) for size in sizes]
    ours = mlp(3, 5, 2).double()
    theirs = copy.deepcopy(ours)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])

    with saved_bytes(ours) as one:
        loss_fn(ours, batches[0])
    for model, loop in ((ours, _reference), (theirs, answer)):
        optimizer = make(model.parameters())
        with saved_bytes(model) as saved:
            for _ in range(2):
                loop(model, list(batches), loss_fn, optimizer, n)
    case = f"on a real model, N = {n}, {type(optimizer).__name__}"
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if not torch.allclose(p, q, rtol=1e-9, atol=1e-10):
            gap = float((p - q).detach().abs().max())
            raise _Found("wrong-value", f"{case}: parameter {name} ends up {gap:.2g} off.")
    if saved.peak > 1.5 * one.peak:
        raise _Found(
            "held-graphs",
            f"{case}: the updates are right, but {saved.peak} bytes are kept for backward at once, where one "
            f"micro-batch needs {one.peak}: call backward on each before the next forward.",
        )


def _same(row: Tensor, want: Tensor) -> bool:
    return torch.allclose(row, want, rtol=1e-9, atol=1e-12)


def _number(value: object) -> float:
    if value is None or value is Ellipsis:
        raise _Found("not-attempted", f"your function returned {value}; it should return a number.")
    try:
        return float(value)
    except Exception:
        raise _Found("wrong-type", f"expected a number, got {repr(value)} ({type(value).__name__}).") from None


def _close(got: Sequence[float], want: Sequence[float]) -> bool:
    return all(abs(g - w) <= 1e-9 * max(1.0, abs(w)) for g, w in zip(got, want, strict=True))


def _round(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]


JUDGES: dict[str, Callable[[Callable], str]] = {
    "slope": _slope,
    "product_backward": _product_backward,
    "train": _train,
    "dirty": _dirty,
    "accumulate_equal": _accumulate_equal,
    "accumulate": _accumulate,
    "logged_loss": _logged_loss,
    "forgotten": _forgotten,
}
