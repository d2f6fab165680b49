"""The exercise of notebook 03d: accumulation over padded sequences, where every token that is left counts the same."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from math import isclose, isnan
from reprlib import repr

import torch
from torch import Tensor, nn

from course_utils.loops import windows
from course_utils.memory import saved_bytes
from course_utils.practice.exercises.verdict import Mistake, compare_memory, compare_weights, number, rounded

IGNORED = -100
_TOLERANCE = 1e-6  # the quotient of two counts that are tensors is a float32 where that is the default

# A micro-batch is a list of sequences, a sequence the pair (targets that are masked at its start, valid targets).
_EQUAL = ((0, 3), (0, 3))
_PLAIN = (
    ([_EQUAL] * 4, 2),
    ([_EQUAL] * 3, 1),
    ([_EQUAL] * 3, 2),
    ([_EQUAL] * 3, 100),
    ([((0, 2),), ((0, 9), (0, 7)), ((0, 4),), ((0, 5), (0, 5))], 4),
    ([((0, 9), (0, 7)), ((0, 2),), ((0, 3), (0, 1)), ((0, 6),), ((0, 1),)], 2),
    ([((3, 2), (0, 4)), ((1, 5),), ((4, 1), (2, 1), (6, 1))], 3),
)
_EMPTY = (
    ([((0, 2),), ((4, 0), (2, 0)), ((0, 4),)], 3),
    ([((3, 0),), ((0, 2), (1, 3)), ((0, 1),), ((5, 0),), ((0, 3),)], 2),
    ([((0, 2),), ((0, 4),), ((3, 0),), ((4, 0), (1, 0)), ((0, 3),)], 2),
)


def _accumulate_tokens(answer: Callable) -> str:
    for batches, n in _PLAIN:
        _judge_counts(answer, batches, n)
    _judge_counts(answer, _PLAIN[0][0], 2, dirty=True)
    for batches, n in _EMPTY:
        _judge_counts(answer, batches, n)
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)):
        for n in (1, 2, 4):
            _judge_parameters(answer, make, n)
    return (
        "full and short windows, ragged words, masked beginnings, micro-batches and whole windows without a valid "
        "target, a dirty start, SGD and Adam: every valid target counts as in the large batch."
    )


class _Reader(nn.Module):
    """Like a `Tally`, for cross-entropy: two scores per token, of which the first is a weight of its own."""

    def __init__(self, tokens: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(tokens, dtype=torch.float64))
        self.shift = 0.1 * (torch.arange(tokens, dtype=torch.float64) % 7) - 0.3  # so that the losses differ

    def forward(self, inputs: Tensor) -> Tensor:
        score = self.weight[inputs] + self.shift[inputs]
        return torch.stack([score, torch.zeros_like(score)], -1)


def _micro_batches(shapes: Sequence) -> list[tuple[Tensor, Tensor]]:
    """Inputs, in which every valid token has an index of its own, from 0 on; targets 0 or 1, or ignored."""
    index, batches = count(), []
    for shape in shapes:
        width = max(map(sum, shape))
        inputs = torch.zeros(len(shape), width, dtype=torch.long)
        targets = torch.full_like(inputs, IGNORED)
        for row, (masked, valid) in enumerate(shape):
            for column in range(masked, masked + valid):
                inputs[row, column] = next(index)
                targets[row, column] = inputs[row, column] % 2
        batches.append((inputs, targets))
    return batches


def _valid(batch: tuple[Tensor, Tensor]) -> Tensor:
    return batch[1] != IGNORED


def _flat(window: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The valid tokens of a window in one row: no padding, hence nothing that could be counted wrongly."""
    return tuple(torch.cat([batch[part][_valid(batch)] for batch in window]) for part in (0, 1))


def _judge_counts(answer: Callable, shapes: Sequence, n: int, dirty: bool = False) -> None:
    batches = _micro_batches(shapes)
    counts = [int(_valid(batch).sum()) for batch in batches]
    model = _Reader(sum(counts))
    groups = [group for group in windows(range(len(batches)), n) if any(counts[place] for place in group)]
    case = f"micro-batches of {counts} valid targets, N = {n}"
    case += ", and a gradient left by an earlier backward" if dirty else ""

    # What each token's weight changes in its own loss, and that loss: with these the rows of .grad can be read.
    inputs, targets = _flat(batches)
    losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    (slopes,) = torch.autograd.grad(losses.sum(), model.weight)
    losses = losses.detach()
    owner = torch.repeat_interleave(torch.arange(len(batches)), torch.tensor(counts))
    wanted = [
        sum((owner == place).double() for place in group) / sum(counts[place] for place in group) for group in groups
    ]
    right = [float(row @ losses) for row in wanted]

    epochs, got, arrived, steps = _run(answer, model, batches, n, dirty)
    rows = [row / slopes for row in chain(*epochs)]
    if dirty and rows and _same(rows[0], wanted[0] + 7 / slopes):
        hint = "the old gradient entered the first update. Zero once before the first backward, too"
        raise Mistake("stale-gradients", f"{case}: {hint}.")
    if len(rows) != 2 * len(wanted) or not all(map(_same, rows, wanted * 2)):
        seen = _Seen(rows, wanted * 2, len(epochs[0]), arrived, steps, owner)
        bug, hint = _diagnose(seen, groups, batches, n)
        raise Mistake(bug, f"{case}: {hint}.")
    means = [float(losses[owner == place].mean()) for place in range(len(batches))]
    for logged in got:
        _judge_losses(logged, right, [[means[place] for place in group] for group in groups], case)


def _run(
    answer: Callable, model: _Reader, batches: list, n: int, dirty: bool
) -> tuple[list[list[Tensor]], list, int, int]:
    """The gradient at every step that has one, what two epochs return, and how many backwards and steps there were."""
    if dirty:
        model.weight.grad = torch.full_like(model.weight, 7.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    epochs: list[list[Tensor]] = []
    arrived: list[Tensor] = []
    steps: list[int] = []

    def note(*_) -> None:
        steps.append(len(arrived))
        if model.weight.grad is not None:
            epochs[-1].append(model.weight.grad.detach().clone())

    optimizer.register_step_pre_hook(note)
    model.weight.register_post_accumulate_grad_hook(arrived.append)
    returned = []
    for _ in range(2):
        epochs.append([])
        result = answer(model, [(inputs.clone(), targets.clone()) for inputs, targets in batches], optimizer, n)
        is_list = isinstance(result, Iterable) and not isinstance(result, (str, bytes))
        returned.append(list(islice(result, len(batches) + 2)) if is_list else result)  # a generator runs when read
    return epochs, returned, len(arrived), len(steps)


@dataclass
class _Seen:
    """What an answer did: how much each token counted in each update, and how much it should count."""

    rows: list[Tensor]
    wanted: list[Tensor]
    in_first_epoch: int
    arrived: int
    steps: int
    owner: Tensor  # the micro-batch of each token


def _diagnose(seen: _Seen, groups: list[list[int]], batches: list, n: int) -> tuple[str, str]:
    """The first bug that the updates show, and how it shows. Updates and micro-batches are counted from 1."""
    rows, wanted, owner, many = seen.rows, seen.wanted, seen.owner, len(groups)
    used, right = ([sorted(set(owner[row != 0].tolist())) for row in some] for some in (rows, wanted))
    held = f"micro-batches in each update: {[len(u) for u in used]}, expected {[len(u) for u in right]}"
    if not seen.arrived and not seen.steps:
        return "not-attempted", f"no backward and no step has run yet, {len(wanted)} updates are expected"
    if any(row.isnan().any() for row in rows):
        return "nan", "a gradient is nan. A mean over no target at all is 0/0"
    if not seen.steps:
        return "leftover-gradients", f"no optimizer.step() has run, {len(wanted)} were expected"
    if not any(used):
        return "discarded-gradients", f"every one of {seen.steps} steps found no gradient"
    if [] in used and len(rows) > len(wanted):
        hint = "zeros still move the weights under momentum, Adam or weight decay"
        return "empty-step", f"update {used.index([]) + 1} has no valid target and must not be one: {hint}"
    if [] in used or (len(rows) < len(wanted) and seen.steps >= len(wanted)):
        return "discarded-gradients", f"a step found no gradient. Something zeroes between backward and step; {held}"
    if used[0] != right[0] and used[0] == right[0][: len(used[0])]:
        return "irregular-window", f"the first step comes too early; {held}"
    first = used[: seen.in_first_epoch]
    if not set(right[many - 1]) & set(chain(*first)):
        return "leftover-gradients", f"{held}. The last window of an epoch never gets its step"
    if len(rows) != len(wanted) or len(first) != many:
        return "irregular-window", held
    for k, (row, want) in enumerate(zip(rows, wanted, strict=True)):
        if _same(row, want):
            continue
        strangers = sorted({int(place) + 1 for place in owner[(row != 0) & (want == 0)]})
        if strangers or (k >= many and _same(row, want + rows[k - many])):
            which = f"micro-batches {strangers}" if strangers else "the same micro-batches in the epoch before"
            return "stale-gradients", f"update {k + 1} still holds gradients of earlier updates ({which})"
        if bool(((row == 0) & (want != 0)).any()):
            which = f"micro-batches {[place + 1 for place in used[k]]} of {[place + 1 for place in right[k]]}"
            return "discarded-gradients", f"update {k + 1} holds {which}: the rest is missing"
        counted = [float((row / want)[owner == place][0]) for place in right[k]]
        return _weights(k, row, want, counted, [batches[place] for place in groups[k % many]], n)
    return "wrong-value", "the updates are not those of the large batch"


def _weights(k: int, row: Tensor, want: Tensor, counted: list[float], window: list, n: int) -> tuple[str, str]:
    """What is wrong with an update that holds the right tokens in the wrong measure."""
    valid = [int(_valid(batch).sum()) for batch in window]
    factors = (row / want)[want != 0]
    for what, counts in (
        ("each micro-batch counts the same, however many tokens it holds", [1] * len(window)),
        ("micro-batches are weighed by their sequences, not by their tokens", [len(batch[0]) for batch in window]),
        ("padding and masked targets are counted as tokens", [batch[1].numel() for batch in window]),
    ):
        shares = [count / sum(counts) * sum(valid) / v for count, v in zip(counts, valid, strict=True) if v]
        if _close(counted, shares) and not _close(shares, shares[:1] * len(shares)):
            found = f"in update {k + 1} the tokens count {rounded(shares)} times what they should"
            return "token-weights", f"{found}: {what}"
    low, high = float(factors.min()), float(factors.max())
    if not _close([low], [high]):
        found = f"in update {k + 1} the tokens count from {low:.3g} to {high:.3g} times what they should"
        return "token-weights", found
    hint = ""
    if low < 1 and 0 in valid:
        hint = ": micro-batches without a valid target are counted as if they had some"
    elif low < 1 and len(window) < n:
        hint = ": divide by what this short window holds, not by N"
    return "loss-scale", f"update {k + 1} is {low:.3g} times what it should be{hint}"


def _judge_losses(got: object, right: list[float], means: list[list[float]], case: str) -> None:
    if got is None or got is Ellipsis or (isinstance(got, list) and not got):
        raise Mistake(
            "not-attempted", f"{case}: the updates are right. Now return one loss for each of them, not {got}."
        )
    if not isinstance(got, list):
        raise Mistake("wrong-type", f"{case}: expected a list of losses, one per update, got {repr(got)}.")
    got = [number(loss) for loss in got]
    if len(got) == len(right) and _close(got, right):
        return
    case = f"{case}: the updates are right, but of the losses {rounded(right)} were expected, got {rounded(got)}"
    if any(map(isnan, got)):
        raise Mistake("nan", f"{case}. The mean over no valid target is 0/0, and 0 times nan is nan.")
    if len(got) != len(right):
        raise Mistake("wrong-length", f"{case}. One number per update is asked for.")
    if _close(got, [sum(group) / len(group) for group in means]):
        raise Mistake(
            "token-weights", f"{case}: the mean of the micro-batches' means. Use the weights of the gradient."
        )
    raise Mistake("wrong-loss", f"{case}. The mean loss over all valid targets of a window is asked for.")


def _judge_parameters(answer: Callable, make: Callable, n: int) -> None:
    """Every parameter of a real model, and that no two micro-batches' activations are in memory at once."""
    batches = []
    for lengths in ((6, 2, 4), (1, 1, 1), (0, 0, 0), (6, 6, 6), (6, 6, 6), (3, 6, 2), (0, 0, 0), (0, 0, 0), (5, 1, 2)):
        inputs = torch.randint(5, (3, 6))
        targets = torch.randint(5, (3, 6))
        targets[torch.arange(6) >= torch.tensor(lengths)[:, None]] = IGNORED
        batches.append((inputs, targets))
    ours = nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 5)).double()
    theirs = copy.deepcopy(ours)
    with saved_bytes(ours) as one:
        loss = nn.functional.cross_entropy(ours(batches[0][0]).flatten(0, 1), batches[0][1].flatten())
    del loss
    optimizer = make(ours.parameters())
    for _ in range(2):
        for window in windows(batches, n):
            inputs, targets = _flat(window)
            if len(targets):
                optimizer.zero_grad()
                nn.functional.cross_entropy(ours(inputs), targets).backward()
                optimizer.step()
    optimizer = make(theirs.parameters())
    with saved_bytes(theirs) as saved:
        for _ in range(2):
            list(islice(answer(theirs, list(batches), optimizer, n), len(batches) + 2))
    case = f"on a real model, N = {n}, {type(optimizer).__name__}"
    compare_weights(ours, theirs, case, rtol=_TOLERANCE, atol=_TOLERANCE)
    if n == 4:
        compare_memory(saved, one, case, factor=2.5)


def _same(row: Tensor, want: Tensor) -> bool:
    return torch.allclose(row, want, rtol=_TOLERANCE, atol=1e-12)


def _close(got: Sequence[float], want: Sequence[float]) -> bool:
    return all(isclose(g, w, rel_tol=_TOLERANCE) for g, w in zip(got, want, strict=True))


JUDGES = {"accumulate_tokens": _accumulate_tokens}
