"""Answers to "plan_epoch": the plan of one epoch on several ranks."""

import inspect
import math
import random
from fractions import Fraction
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import torch

from answers import outcomes, right, wrong
from course_utils import windows


def plan_epoch(counts, rank, n):
    plan = []
    longest = max(len(own) for own in counts)
    for start in range(0, longest, n):
        total = sum(sum(own[start : start + n]) for own in counts)
        window = []
        if total > 0:
            mine = counts[rank][start : start + n] or [0]
            for k, count in enumerate(mine, start=1):
                window.append((len(counts) * count / total, k == len(mine)))
        plan.append(window)
    return plan


right("plan_epoch")(plan_epoch)


@right("plan_epoch")
def with_windows_and_tensors(counts, rank, n):
    rounds = list(zip_longest(*(windows(own, n) for own in counts), fillvalue=[]))
    totals = [torch.tensor([sum(own) for own in held]).sum() for held in rounds]
    for held, total in zip(rounds, totals, strict=True):
        mine = torch.tensor([float(count) for count in held[rank]] or [0.0], dtype=torch.float64)
        factors = mine / total * len(counts) if total else []
        yield [(factor, i + 1 == len(factors)) for i, factor in enumerate(factors)]


@right("plan_epoch")
def with_a_cursor_and_fractions(counts, rank, n):
    left = [list(own) for own in counts]
    plan = ()
    while any(left):
        held = [[own.pop(0) for _ in range(min(n, len(own)))] for own in left]
        total = sum(map(sum, held))
        window = [[Fraction(count * len(counts), total), 0] for count in held[rank] or [0]] if total else []
        if window:
            window[-1][1] = 1
        plan += (window,)
    return plan


@right("plan_epoch")
def with_islice_and_a_while(counts, rank, n):
    own = [iter(each) for each in counts]
    plan, going = [], True
    while going:
        held = [list(islice(each, n)) for each in own]
        going = any(held)
        if going:
            total = sum(chain(*held))
            mine = (held[rank] or [0]) if total else []
            plan.append([(len(counts) * count / total, False) for count in mine])
            plan[-1][-1:] = [(factor, True) for factor, _ in plan[-1][-1:]]
    return plan


@right("plan_epoch")
def divides_by_the_mean_count_of_the_ranks(counts: list[list[int]], rank: int, n: int) -> list[list[tuple]]:
    if not any(counts):
        return []
    plan = []
    for k in range(math.ceil(max(map(len, counts)) / n)):
        mine, mean = counts[rank][k * n : k * n + n], sum(sum(own[k * n : k * n + n]) for own in counts) / len(counts)
        factors = [count / mean for count in mine or [0]] if mean else []
        plan.append(list(zip(factors, [False] * (len(factors) - 1) + [True], strict=False)))
    return plan


@right("plan_epoch")
def with_padding(counts, rank, n):
    """All ranks padded with None to one length: what is padding has no pair, unless nothing else is left."""
    longest = max(map(len, counts))
    padded = [own + [None] * (longest - len(own)) for own in counts]
    plan = []
    for start in range(0, longest, n):
        total = sum(count or 0 for own in padded for count in own[start : start + n])
        mine = [count for count in padded[rank][start : start + n] if count is not None] or [0]
        plan.append([[count / total * len(counts), i == len(mine) - 1] for i, count in enumerate(mine) if total])
    return plan


class Pair(NamedTuple):
    factor: float
    sync: bool


@right("plan_epoch")
def with_named_pairs(counts, rank, n):
    totals = {}
    for own in counts:
        for i, count in enumerate(own):
            totals[i // n] = totals.get(i // n, 0) + count
    for k in range(len(totals)):
        mine = [count for i, count in enumerate(counts[rank]) if i // n == k] or [0]
        *first, last = (len(counts) * count / (totals[k] or 1) for count in mine)
        yield tuple([Pair(factor, False) for factor in first] + [Pair(last, True)]) if totals[k] else ()


@right("plan_epoch")
def in_float32(counts, rank, n):
    table = torch.full((len(counts), max(map(len, counts))), -1.0)
    for own, row in zip(counts, table, strict=True):
        row[: len(own)] = torch.tensor(own)
    plan = []
    for held in table.split(n, dim=1):
        total, mine = held.clamp(min=0).sum(), held[rank][held[rank] >= 0]
        factors = (mine if len(mine) else torch.zeros(1)) * len(counts) / total
        plan.append([(f, torch.tensor(i == len(factors) - 1)) for i, f in enumerate(factors)] if total > 0 else [])
    return plan


@right("plan_epoch")
def by_recursion(counts, rank, n):
    if not any(counts):
        return []
    now, later = [own[:n] for own in counts], [own[n:] for own in counts]
    total = sum(map(sum, now))
    factors = [count * len(counts) / total for count in now[rank] or [0]] if total else []
    syncs = [False] * len(factors[1:]) + [True] * bool(factors)
    return [list(zip(factors, syncs, strict=True)), *by_recursion(later, rank, n)]


def variant(old, new):
    """The right answer with one place of its source changed."""
    source = inspect.getsource(plan_epoch)
    assert source.count(old) == 1
    namespace = {}
    exec(source.replace(old, new), namespace)
    return namespace["plan_epoch"]


LAST = "k == len(mine)"
FACTOR = "len(counts) * count / total"
LONGEST = "max(len(own) for own in counts)"
WRONG = {
    "loss-scale: without the number of ranks": ("loss-scale", variant(FACTOR, "count / total")),
    "loss-scale: the ranks twice": ("loss-scale", variant(FACTOR, "len(counts) ** 2 * count / total")),
    "token-weights: by the rank's own count": (
        "token-weights",
        lambda counts, rank, n: [
            [(count / (sum(window) or 1), k == len(window)) for k, count in enumerate(window, start=1)]
            for window in windows(counts[rank], n)
        ],
    ),
    "token-weights: a mean of rank means (pytorch/torchtitan!2206, huggingface/transformers!39395)": (
        "token-weights",
        variant(FACTOR, "count / (sum(mine) or 1)"),
    ),
    "token-weights: divided by the micro-batches": ("token-weights", variant(FACTOR, "1 / len(mine)")),
    "token-weights: the total of the whole epoch": (
        "token-weights",
        lambda counts, rank, n: [
            [(factor * sum(map(sum, counts)) / (k + 1), sync) for k, (factor, sync) in enumerate(window)]
            for window in plan_epoch(counts, rank, n)
        ],
    ),
    "sync-cadence: every micro-batch": ("sync-cadence", variant(LAST, "True")),
    "sync-cadence: none": ("sync-cadence", variant(LAST, "False")),
    "sync-cadence: the first (modelscope/FunASR!3472, karpathy/build-nanogpt!30)": (
        "sync-cadence",
        variant(LAST, "k == 1"),
    ),
    "sync-cadence: inverted": ("sync-cadence", variant(LAST, "k < len(mine)")),
    "sync-cadence: the n-th, which a short window has not": ("sync-cadence", variant(LAST, "k == n")),
    "sync-cadence: nothing planned by a rank that has run out": ("sync-cadence", variant(" or [0]", "")),
    "sync-cadence: windows of the own rank only": ("sync-cadence", variant(LONGEST, "len(counts[rank])")),
    "sync-cadence: no stand-in where the own micro-batches are empty": (
        "sync-cadence",
        lambda counts, rank, n: [w if any(f for f, _ in w) else [] for w in plan_epoch(counts, rank, n)],
    ),
    "leftover-gradients: the shortest rank decides": (
        "leftover-gradients",
        variant(LONGEST, "min(len(own) for own in counts)"),
    ),
    "leftover-gradients: the short window is dropped": (
        "leftover-gradients",
        variant("range(0, longest, n)", "range(0, longest - n + 1, n)"),
    ),
    "leftover-gradients: empty windows are left out": (
        "leftover-gradients",
        lambda *case: [window for window in plan_epoch(*case) if window],
    ),
    "irregular-window: a step after every micro-batch": (
        "irregular-window",
        lambda counts, rank, n: plan_epoch(counts, rank, 1),
    ),
    "irregular-window: stand-ins up to n": (
        "irregular-window",
        lambda counts, rank, n: [(([(0.0, False)] * n) + w)[-n:] if w else w for w in plan_epoch(counts, rank, n)],
    ),
    "empty-step: a window without a token": (
        "empty-step",
        lambda *case: [window or [(0.0, True)] for window in plan_epoch(*case)],
    ),
    "nan: 0 / 0": (
        "nan",
        lambda *case: [
            [(factor or math.nan, sync) for factor, sync in window] for window in plan_epoch(*case)
        ],
    ),
    "raises: the division by an empty window": ("raises", variant("if total > 0", "if True")),
    "not-attempted: nothing": ("not-attempted", lambda counts, rank, n: []),
    "wrong-type: no pairs": ("wrong-type", lambda *case: [[factor for factor, _ in w] for w in plan_epoch(*case)]),
    "wrong-type: a factor that is a word": ("wrong-type", lambda *case: [[("all", True)] for _ in plan_epoch(*case)]),
    "changed-input: takes the counts out of the lists": (
        "changed-input",
        lambda counts, rank, n: plan_epoch([[own.pop(0) for _ in list(own)] for own in counts], rank, n),
    ),
    "changed-input: empties the lists when the plan is made": (
        "changed-input",
        lambda counts, *rest: (plan_epoch(counts, *rest), [own.clear() for own in counts])[0],
    ),
    "changed-input: pads the other ranks' lists": (
        "changed-input",
        lambda counts, *rest: (plan_epoch(counts, *rest), [own.append(0) for own in counts])[0],
    ),
    "low-precision: rounded to three digits": ("low-precision", variant(FACTOR, f"round({FACTOR}, 3)")),
    "low-precision: rounded to two digits": ("low-precision", variant(FACTOR, "len(counts) * round(count / total, 2)")),
    "low-precision: half precision": (
        "low-precision",
        variant(FACTOR, f"__import__('torch').tensor({FACTOR}, dtype=__import__('torch').bfloat16)"),
    ),
    "low-precision: whole numbers": ("low-precision", variant(FACTOR, "len(counts) * count // total")),
    "loss-scale: not divided": ("loss-scale", variant(FACTOR, "float(count)")),
    "loss-scale: divided by n as well": ("loss-scale", variant(FACTOR, "len(counts) * count / total / n")),
    "loss-scale: by the tokens of the rank that holds most": (
        "loss-scale",
        variant("sum(sum(own[start : start + n]) for own in counts)", "max(sum(o[start : start + n]) for o in counts)"),
    ),
    "filtered-windows: micro-batches without a token left out before the windows": (
        "filtered-windows",
        lambda counts, *rest: plan_epoch([[count for count in own if count] for own in counts], *rest),
    ),
    "irregular-window: micro-batches without a token left out of their window": (
        "irregular-window",
        lambda *case: [[p for i, p in enumerate(w) if p[0] or i + 1 == len(w)] for w in plan_epoch(*case)],
    ),
    "irregular-window: windows of n + 1": ("irregular-window", lambda counts, r, n: plan_epoch(counts, r, n + 1)),
    "irregular-window: one window for the epoch": (
        "irregular-window", lambda *case: [[pair for window in plan_epoch(*case) for pair in window]],
    ),
    "token-weights: the plan of rank 0 on every rank": (
        "token-weights", lambda counts, rank, n: plan_epoch(counts, 0, n),
    ),
    "not-attempted: windows without pairs": ("not-attempted", lambda *case: [[] for _ in plan_epoch(*case)]),
    "irregular-window: one window more at the end": ("irregular-window", lambda *case: [*plan_epoch(*case), []]),
    "token-weights: a stand-in that counts": ("token-weights", variant(" or [0]", " or [total]")),
    "sync-cadence: a stand-in that does not synchronise": (
        "sync-cadence",
        lambda *case: [[(f, s and f > 0) for f, s in w] if len(w) == 1 else w for w in plan_epoch(*case)],
    ),
    "sync-cadence: the last pair that holds a token, and those after it": (
        "sync-cadence",
        lambda *case: [[(f, not sum(x for x, _ in w[i:]) - f) for i, (f, _) in enumerate(w)] for w in plan_epoch(*case)]
    ),
    "sync-cadence: the last window only": (
        "sync-cadence",
        lambda *case: [[(f, s and w is p[-1]) for f, s in w] for p in [plan_epoch(*case)] for w in p],
    ),
    "leftover-gradients: whole windows by floor division": (
        "leftover-gradients",
        variant("range(0, longest, n)", "range(0, longest // n * n, n)"),
    ),
    "wrong-type: the pairs of all windows in one list": (
        "wrong-type", lambda *case: [pair for window in plan_epoch(*case) for pair in window],
    ),
    "wrong-type: the plans of all ranks": (
        "wrong-type", lambda counts, rank, n: [plan_epoch(counts, each, n) for each in range(len(counts))],
    ),
    "wrong-type: (sync, factor)": ("wrong-type", lambda *case: [[(s, f) for f, s in w] for w in plan_epoch(*case)]),
}  # fmt: skip


for bug, answer in WRONG.values():
    wrong("plan_epoch", bug)(answer)

wrong("plan_epoch", "loss-scale", says="DDP divides by the 2 ranks once more")(variant(FACTOR, "count / total"))
wrong("plan_epoch", "loss-scale", says="Every token counts 0.5 times")(variant(FACTOR, "count / total"))
wrong("plan_epoch", "sync-cadence", says="the ranks plan [3, 1, 2] windows")(variant(LONGEST, "len(counts[rank])"))


for bug, answer in (
    ("wrong-type", lambda *_: [None]),
    ("wrong-type", lambda *_: [[None]]),
    ("wrong-type", lambda *_: {"a": 1}),
    ("wrong-type", lambda *_: [[(1.0, torch.ones(2))]]),
    ("not-attempted", lambda *_: [[(None, None)]]),
    ("not-attempted", lambda *a: a[0].clear()),
    ("not-attempted", lambda *_: iter(lambda: [], 1)),
    ("irregular-window", lambda *_: iter(lambda: [(1.0, True)], 1)),
    ("irregular-window", lambda *_: [[(math.inf, True)], [(-1.0, True)]]),
):
    wrong("plan_epoch", bug)(answer)


@outcomes("plan_epoch", plan_epoch, mutants=30)
def outcomes_of_plan_epoch(answer):
    """The plans of every rank on random counts, with the lengths of the windows."""
    draw = random.Random(5)
    for _ in range(200):
        longest = draw.choice([1, 2, 5, 8])
        counts = [
            [draw.choice([0, 0, 1, 2, 7]) for _ in range(draw.randint(0, longest))] for _ in range(draw.randint(1, 4))
        ]
        n = draw.randint(1, 4)
        if any(counts):
            yield lambda counts=counts, n=n: flat([list(answer(copied(counts), r, n)) for r in range(len(counts))])


def copied(counts):
    return [list(own) for own in counts]


def flat(plans):
    numbers = [float(len(plan)) for plan in plans]
    for window in (list(window) for plan in plans for window in plan):
        numbers += [float(len(window)), *(float(number) for factor, sync in window for number in (factor, bool(sync)))]
    return numbers
