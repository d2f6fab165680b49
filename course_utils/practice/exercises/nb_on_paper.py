"""The exercises on paper: numbers for blanks. Each mistake is the numbers that it leads to where they are wrong."""

from itertools import cycle
from math import ceil

import torch
from torch import nn

from course_utils.practice.bench import on_paper


def grads():
    w, x = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (3.0, 2.0))
    w.grad = torch.tensor(1.0, dtype=torch.float64)
    a = w * x
    b = a + w
    (a * b).backward()
    return {"w.grad": w.grad.item(), "x.grad": x.grad.item(), "a.grad": None}


GRAD_ON_PAPER = on_paper(
    "grad_on_paper",
    "01_gradients",
    grads,
    ("forgets-the-old-gradient", {"w.grad": 36}),
    ("forgets-a-path", {"w.grad": 25, "x.grad": 27}),
    ("forgets-a-path/w-through-b", {"w.grad": 31}),
    ("forgets-a-path/w-through-a", {"w.grad": 7}),
    ("forgets-a-path/product", {"w.grad": 19, "x.grad": 27}),
    ("swapped", {"w.grad": 45, "x.grad": 37}),
    ("swapped", {"w.grad": 45, "x.grad": 36}),
    ("none-is-not-zero", {"a.grad": 0}),
    *(("leaves-only", {"a.grad": slope}) for slope in (15, 9, 6)),
    ("leaves-only/leaves", {"w.grad": None, "x.grad": None}),
)


def read_by_step(program: str, number: int = 3) -> float | None:
    """What a program's step finds in `.grad`, as autograd has it. Batch k has the gradient 10 ** (k - 1).

    Args:
        program: Letters: z for zero_grad, f forward, b backward, s step. It is repeated for ever.
        number: Which step, counted from 1.
    """
    w, loss, batch = nn.Parameter(torch.ones((), dtype=torch.float64)), None, 0
    optimizer = torch.optim.SGD([w], lr=0.1)
    for letter in cycle(program):
        if letter == "f":
            batch, loss = batch + 1, 10.0**batch * w
        elif letter == "s":
            number -= 1
            if not number:
                return None if w.grad is None else w.grad.item()
            optimizer.step()
        elif letter == "b" and loss is not None:
            loss.backward()
        elif letter == "z":
            optimizer.zero_grad()


THIRD_STEP = on_paper(
    "third_step",
    "02_zeroing",
    lambda: {program: read_by_step(program) for program in ("fbs", "bszf", "fbszs", "fbzfbs", "fbzs")},
    ("nothing-clears", {"fbs": 100}),
    ("forgets-z", {"bszf": 11, "fbszs": 11, "fbzfbs": 111111, "fbzs": 111}),
    ("forgets-z/one-batch", {"fbzfbs": 110000, "fbzs": 100}),
    ("counts-rounds", {"fbszs": 100, "fbzfbs": 100}),
    *(("backward-before-forward", {"bszf": grad}) for grad in (100, 1)),
    ("none-is-not-zero", {"fbzs": 0}),
)


DDP_ON_PAPER = on_paper(
    "ddp_on_paper",
    "ddp_options",
    lambda: {
        "effective": 8 * 4 * 32,  # ranks, micro-batches, samples
        "always": 4 * 3,  # micro-batches, buckets
        "last": 3,
        "around_backward": 4 * 3,
        "momentum": 7 / 8,
        "twice": ceil(1003 / 8) * 8 - 1003,
    },
    ("one-rank-only", {"effective": 4 * 32}),
    ("one-micro-batch", {"effective": 8 * 32}),
    ("without-buckets", {"always": 4, "last": 1, "around_backward": 4}),
    ("counted-on-all", {"always": 8 * 12, "last": 8 * 3, "around_backward": 8 * 12}),
    ("backward-alone", {"around_backward": 3}),
    ("backward-alone/buckets", {"around_backward": 1}),
    ("who-forgets", {"momentum": 1 / 8}),
    ("all-forget", {"momentum": 1}),
    ("dropped", {"twice": 1003 % 8}),
    ("dropped/equal", {"twice": 0}),
)


FITS_ON_PAPER = on_paper(
    "fits_on_paper",
    "memory",
    lambda: {  # what is left of 1000 MB, over what one sample adds
        "plain": (1000 - 4 * 150) // 40,
        "checkpointed": (1000 - 4 * 150) // (5 + 15),
        "sgd": (1000 - 2 * 150) // 40,
        "adapters": (1000 - 150 - 4 * 10) // 38,
        "n": ceil(64 / 10),
    },
    ("forgets-the-state", {"plain": 17, "checkpointed": 35, "n": 4}),
    ("forgets-gradients", {"plain": 13, "checkpointed": 27, "sgd": 21, "n": 5}),
    ("activations-alone", {"plain": 25, "checkpointed": 50, "sgd": 25, "adapters": 26, "n": 3}),
    ("keeps-a-state", {"sgd": 10}),
    ("one-state-for-sgd", {"sgd": 13}),
    ("forgets-the-block", {"checkpointed": 80}),
    ("everything-trains", {"adapters": 9}),
    ("frozen-weights-vanish", {"adapters": 25}),
    ("rounds-the-wrong-way", {"sgd": 18, "adapters": 22, "n": 6}),
    ("not-rounded", {"sgd": 17.5, "adapters": 810 / 38, "n": 6.4}),
    ("not-rounded", {"n": 6.4}),
)


UPDATES = "updates"
DEFAULT = "calls of a default AdamW's step"
FUSED = "calls of a fused AdamW's step"
LATE = "updates if zeroed only after an update"
LOG = [1024, 1024, 2048, 1024, 1024, 1024, 512, 512, 512, 1024]  # the scale after each window
FELL = (4, 7)  # the windows with an infinity


def run(fused: bool = False, always_zeroed: bool = True) -> tuple[int, int, list[float]]:
    """The ten windows: how many updates, how many calls of step(), and the scale after each window."""
    weight, calls, updates, log = nn.Parameter(torch.zeros(1)), [], 0, []
    optimizer = torch.optim.AdamW([weight], lr=1.0, fused=fused)
    optimizer.register_step_pre_hook(lambda *_: calls.append(weight))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for window in range(1, len(LOG) + 1):
        before = weight.item()
        scaler.scale((torch.inf if window in FELL else 1.0) * weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        updated = weight.item() != before
        updates += updated
        if updated or always_zeroed:
            optimizer.zero_grad()
        log.append(scaler.get_scale())
    return updates, len(calls), log


SCALER_LOG = on_paper(
    "scaler_log",
    "skipped_steps",
    lambda: {UPDATES: run()[0], DEFAULT: run()[1], FUSED: run(fused=True)[1], LATE: run(always_zeroed=False)[0]},
    ("all-counted", {UPDATES: 10, LATE: 10}),
    ("growth-counted", {UPDATES: 6}),
    ("skips-counted", {UPDATES: 2, DEFAULT: 2, FUSED: 2}),
    ("default-called", {DEFAULT: 10}),
    ("fused-not-called", {FUSED: 8}),
    *(("infinity-forgotten", {LATE: many}) for many in range(4, 10)),
)


BOWL = "zeroed w2", "zeroed w3", "forgotten w2", "forgotten w3", "forgotten .grad"
BOWL_ON_PAPER = on_paper(
    "bowl_on_paper",
    "where_forgetting_leads",
    lambda: dict(zip(BOWL, (4, -8, 1, 1, 4 + 4 * -2 + 4 * 1), strict=True)),  # the slope is 4w: 4, then -8, then 4
    ("swapped", dict(zip(BOWL, (1, 1, 4, -8, 16), strict=True))),
    ("uphill", dict(zip(BOWL, (16, 64, 19, 91, 96), strict=True))),
    ("no-learning-rate", dict(zip(BOWL, (9, -27, 5, -7, 12), strict=True))),
    ("wrong-slope", dict(zip(BOWL, (0.25, -0.125, -1.25, -0.125, -1.5), strict=True))),
    ("wrong-slope/loss", dict(zip(BOWL, (-0.875, -2.0234375, -2.375, -12.7109375, 13.78125), strict=True))),
    ("decays", {"forgotten w3": 4, "forgotten .grad": -4}),
    ("own-gradient", {"forgotten .grad": 4}),
    ("none-is-not-zero", {"forgotten .grad": None}),
)
