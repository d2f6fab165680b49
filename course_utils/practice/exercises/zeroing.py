"""The exercises of notebooks 02b and 02c: where a loop goes that never zeroes, and a guard for clean windows."""

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from reprlib import repr

import torch
from torch import Tensor, nn

from course_utils.practice.exercises.verdict import Mistake, close, number, rounded

# Exercise of notebook 02b: where a loop goes that never zeroes.


def _forgotten(answer: Callable) -> str:
    for gradients, lr in (([2.0, -1.0, 0.5, -3.0, 4.0], 0.25), ([1.0, 1.0, 1.0], 0.5), ([3.0], 2.0), ([], 0.1)):
        right, got = _positions(gradients, lr, 1.0), _path(answer, gradients, lr)
        case = f"fresh gradients {gradients}, lr = {lr}: expected {rounded(right)}, got {rounded(got)}"
        if len(got) == len(right) and close(got, right):
            continue
        if not got and right:
            raise Mistake(
                "not-attempted", "your function returned no position; it should return one after each update."
            )
        for bug, wrong, hint in (
            ("zeroed", _positions(gradients, lr, 0.0), "each update uses only its own gradient, as if zeroed"),
            ("uphill", [-w for w in right], "an update goes against the gradient, so the sum is subtracted"),
            ("off-by-one", [0.0, *right], "the start is no update; the first position is the one after update 1"),
            ("off-by-one", [0.0, *right[:-1]], "backward comes before step, so the fresh gradient is in the sum"),
            ("off-by-one", right[:-1], "the last update is missing"),
            ("off-by-one", right[1:], "the first update is missing"),
            ("last-only", right[-1:] * len(right), "every entry is the last position, as of one tensor that moves on"),
        ):
            if len(got) == len(wrong) and close(got, wrong):
                raise Mistake(bug, f"{case}: {hint}.")
        impulse = [0.0, *_path(answer, [1.0, 0.0, 0.0, 0.0, 0.0], 1.0)]
        moves = [before - after for before, after in pairwise(impulse)]
        if len(moves) == 5 and close(moves[:1], [1.0]) and all(0 <= move < 1 for move in moves[2:]):
            raise Mistake(
                "decays",
                f"{case}. After the gradients 1, 0, 0, 0, 0 it moves by {rounded(moves)}: nothing takes an old "
                "gradient out of .grad, so it counts in full in every later update.",
            )
        raise Mistake("wrong-value", f"{case}.")
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
        raise Mistake("not-attempted", f"your function returned {got}; it should return a list of positions.")
    try:
        got = list(islice(got, len(gradients) + 2))
    except TypeError:
        kind = type(got).__name__
        raise Mistake("wrong-type", f"expected a list with one position per update, got a {kind}.") from None
    return [number(w) for w in got]


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
            raise Mistake(bug, f"{case}: your function raised {type(error).__name__}: {error}") from error
        if names is None:
            raise Mistake("not-attempted", "your function returned None; it should return a list of names.")
        after = model[1].weight.grad
        if (after is None) != (before is None) or (after is not None and not torch.equal(*map(_bits, (after, before)))):
            raise Mistake("changes-gradients", f"{case}: a guard looks, it must not change .grad.")
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(x, str) for x in names):
            raise Mistake("wrong-type", f"{case}: expected a list of parameter names, got {repr(names)}.")
        expected = ["1.weight"] if is_dirty else []
        if list(names) != expected:
            raise Mistake(bug, f"{case}: expected {expected}, got {list(names)}; {hint}.")
    return "gradients, None, frozen, zeros, signs that cancel, nan, infinity: the guard sees what is there."


def _bits(gradient: Tensor) -> Tensor:
    return gradient.view(torch.int64)


JUDGES = {"forgotten": _forgotten, "dirty": _dirty}
