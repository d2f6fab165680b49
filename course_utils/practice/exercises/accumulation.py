"""The exercises of notebooks 00, 02, 03 and 03b: training loops, judged on a `Tally` and then on a real model."""

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from reprlib import repr

import torch
from torch import Tensor, nn

from course_utils.loops import windows
from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.exercises.verdict import Mistake, close, compare_memory, compare_weights, number, rounded

# Exercises of notebooks 00 and 02: a training loop with one update per batch.


def _first_loop(answer: Callable) -> str:
    """In the words of notebook 00, which knows batches only; what `.grad` held before, notebook 02 asks."""
    try:
        _judge_loop(
            lambda model, batches, loss_fn, optimizer, _n: answer(model, batches, loss_fn, optimizer),
            n_values=(1,),
            dirty=False,
        )
    except Mistake as found:
        bug, message = found.verdict.bug, found.verdict.message.replace("micro-batch", "batch")
        raise Mistake(bug, "no backward and no step has run yet." if bug == "not-attempted" else message) from None
    return "equal batches and unequal ones, two optimizers: every update holds its own batch and nothing else."


def _train(answer: Callable) -> str:
    _judge_loop(
        lambda model, batches, loss_fn, optimizer, _n: answer(model, batches, loss_fn, optimizer), n_values=(1,)
    )
    return "a clean and a dirty start, 2 epochs, SGD and Adam: every update holds its own batch and nothing else."


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
            raise Mistake("not-attempted", f"your function returned {got}; it should return one loss per update.")
        groups = list(windows(batches, n))
        right = [float(torch.cat(group).mean()) for group in groups]
        if not isinstance(got, Iterable):
            raise Mistake("wrong-type", f"expected a list of losses, one per update, got {repr(got)}.")
        got = [number(loss) for loss in got]
        case = f"micro-batches of {list(sizes)} items, N = {n}: expected {rounded(right)}, got {rounded(got)}"
        if len(got) == len(right) and close(got, right):
            continue
        means = [[float(batch.mean()) for batch in group] for group in groups]
        if len(got) == len(batches):
            raise Mistake("per-micro-batch", f"{case}. One number per update is asked for, not one per micro-batch.")
        if len(got) != len(right):
            bug = "leftover-gradients" if len(got) < len(right) else "irregular-window"
            raise Mistake(bug, f"{case}. The number of updates is not right.")
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
            if close(got, list(wrong)):
                raise Mistake(bug, f"{case}: {hint}.")
        raise Mistake("wrong-value", f"{case}.")
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
    right, _ = rows_of_steps(_reference, sizes, n, dirty)
    got, arrived = rows_of_steps(answer, sizes, n, dirty)
    rows, wanted = list(chain(*got)), list(chain(*right))
    if len(rows) == len(wanted) and all(map(same_rows, rows, wanted)):
        return
    case = f"micro-batches of {list(sizes)} items, N = {n}" if n > 1 else f"batches of {list(sizes)} items"
    case += ", and a gradient left by an earlier backward" if dirty else ""
    if dirty and rows and same_rows(rows[0], wanted[0] + 7):
        hint = "the old gradient entered the first update. Zero once before the first backward, too"
        raise Mistake("stale-gradients", f"{case}: {hint}.")
    bug, hint = diagnose(rows, wanted, len(got[0]), arrived, sizes, n)
    raise Mistake(bug, f"{case}: {hint}.")


def rows_of_steps(loop: Loop, sizes: Sequence[int], n: int, dirty: bool) -> tuple[list[list[Tensor]], int]:
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


def diagnose(
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
        twice = k >= len(groups) and same_rows(row, want + rows[k - len(groups)])
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
        if close(factors, [1.0] * len(group)):
            continue
        if close(factors, factors[:1] * len(group)):
            short = len(group) < len(groups[0])
            which = f"update {k + 1}" + (", of a short window," if short else "")
            mend = ": divide by what it holds, not by N" if short else ""
            return "loss-scale", f"{which} is {factors[0]:.3g} times what it should be{mend}"
        found = f"in update {k + 1} the items of its micro-batches count {rounded(factors)} times what they should"
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
    compare_weights(ours, theirs, case)
    compare_memory(saved, one, case)


def same_rows(row: Tensor, want: Tensor) -> bool:
    return torch.allclose(row, want, rtol=1e-9, atol=1e-12)


JUDGES = {
    "first_loop": _first_loop,
    "train": _train,
    "accumulate_equal": _accumulate_equal,
    "accumulate": _accumulate,
    "logged_loss": _logged_loss,
}
