"""Answers to "plan_epoch": the plan of one epoch on several ranks."""

import inspect
import math
import random
from fractions import Fraction
from itertools import zip_longest

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
    ("irregular-window", lambda *_: iter(lambda: [], 1)),
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
