"""What a micro-batch costs, by hand and in libraries: `python tests/benchmarks/compare.py`.

Needs `pip install -e ".[bench]"` and about 10 minutes of an otherwise idle machine. `--write` keeps
the figures and writes them into the site's page.

Every loop trains the same network in float32 by plain SGD on the same micro-batches of equal size,
on one thread; the libraries run as their guides show it, with nothing else turned on. First, three
updates of each are compared with those of large batches, in float64. The time runs from the end of
one optimizer step to that of a later one, so over whole windows. All loops run in turn, in short
rounds; a ratio is to the mean of the two runs by hand of its round, and the tables show the median
and the quartiles. The ratio between these two says how far any can be trusted. Only the process's
own time counts.
"""

import gc
import json
import math
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from operator import itemgetter

import torch
from side_by_side import EXACT, PACKAGES, ROOT, TRAINER, asked_to_write, keep, quiet, rank_options
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from tqdm import tqdm

from course_utils import mlp, train_epoch, windows
from course_utils.data import folder, read
from gradaudit import audit
from gradaudit.history import PROBED_GRAPHS

PAGE = ROOT / "docs" / "loop.md"
OUT = folder() / "measurements" / "compare.json"


@dataclass(frozen=True)
class Case:
    """One setting in which all loops are measured: a network, and the size of a micro-batch."""

    widths: tuple[int, ...]
    items: int
    rounds: int
    windows: int = 16  # that are timed, in each round

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return mlp(*self.widths)

    def batches(self, windows: int) -> list[dict]:
        torch.manual_seed(1)
        first, *_, last = self.widths
        return [
            {"input": torch.randn(self.items, first), "labels": torch.randint(last, (self.items,))}
            for _ in range(windows * N)
        ]


N = 4
CASES = [
    Case((8, 8, 4), 4, rounds=60),
    Case((128, 256, 256, 10), 64, rounds=30),
    Case((512, 512, 512, 512, 10), 128, rounds=200, windows=4),
    Case((768, 1024, 1024, 1024, 10), 192, rounds=60, windows=2),
]

# The loops. Each is called as loop(model, loader) and trains for one epoch.


def mean_loss(model, batch):
    return F.cross_entropy(model(batch["input"]), batch["labels"])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def by_hand(model, loader, looks=False):
    optimizer, losses, iterator = sgd(model), [], iter(loader)
    while window := list(islice(iterator, N)):
        total, window_loss = sum(len(batch["input"]) for batch in window), 0.0
        for batch in window:
            loss = mean_loss(model, batch) * (len(batch["input"]) / total)
            loss.backward()
            window_loss += loss.detach()
        if not looks or nn.utils.get_total_norm([p.grad for p in model.parameters()]).isfinite():
            optimizer.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    return torch.stack(losses).tolist()


def ours(model, loader):
    train_epoch(model, loader, mean_loss, sgd(model), n=N)


def audited(model, loader):
    with audit(window=N):
        ours(model, loader)


def accelerate(model, loader):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=N)
    model, optimizer, loader = accelerator.prepare(model, sgd(model), loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(mean_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()


def here() -> dict:
    return rank_options() | {"precision": f"{torch.get_default_dtype().itemsize * 8}-true"}


def fabric(model, loader):
    from lightning import Fabric

    fabric = Fabric(**here())
    fabric.launch()
    model, optimizer = fabric.setup(model, sgd(model))
    for iteration, batch in enumerate(fabric.setup_dataloaders(loader)):
        is_accumulating = (iteration + 1) % N != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(mean_loss(model, batch) / N)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()


def lightning(model, loader):
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch):
            return mean_loss(self.model, batch)

        def configure_optimizers(self):
            return sgd(self.model)

    Trainer(barebones=True, max_epochs=1, accumulate_grad_batches=N, **here()).fit(Module(), loader)


class ReturnsMean(nn.Sequential):
    def forward(self, input, labels):
        return {"loss": F.cross_entropy(self[0](input), labels)}


def trainer(model, loader):
    from transformers import Trainer, TrainingArguments

    model = ReturnsMean(model)
    plain = {"lr_scheduler_type": "constant", "logging_nan_inf_filter": False, "dataloader_pin_memory": False}
    plain["logging_strategy"] = "no"
    arguments = TrainingArguments(**TRAINER, **plain, gradient_accumulation_steps=N)
    Trainer(model, arguments, loader.collate_fn, loader.dataset, optimizers=(sgd(model), None)).train()


BY_HAND = "by hand", "by hand, again"
OURS = "`train_epoch`"
LOOPS: dict[str, Callable] = dict.fromkeys(BY_HAND, by_hand) | {
    "by hand, with a look for NaN": partial(by_hand, looks=True),
    OURS: ours,
    f"{OURS}, audited": audited,
}
TRAINERS = "transformers Trainer, own model its mean", "transformers Trainer, guide own loss"
LIBRARIES = {  # the package, the loop, and the rows in side_by_side.json: the plain form, and one that counts tokens
    "Accelerate": ("accelerate", accelerate, "Accelerate, guide", "Accelerate, guide variable size"),
    "Fabric": ("lightning", fabric, "Lightning Fabric, guide", "Lightning Fabric, correct"),
    "Lightning": ("lightning", lightning, "Lightning Trainer, guide", "Lightning Trainer, correct"),
    "transformers": ("transformers", trainer, *TRAINERS),
}
FORMS = {name: forms for name, (_, _, *forms) in LIBRARIES.items()} | {OURS: ("", "this course, train epoch")}
LOOPS |= {name: loop for name, (package, loop, *_) in LIBRARIES.items() if find_spec(package)}


# Measuring.


def run(case: Case, loop: Callable, windows: int) -> nn.Module:
    """One epoch of so many windows; returns the model that it has trained."""
    model = case.model()
    with quiet():
        loop(model, DataLoader(case.batches(windows), batch_size=1, collate_fn=itemgetter(0)))
    return model


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def error(case: Case, loop: Callable, updates: int = 3) -> float:
    """The distance from the weights of large batches, over how far these have moved; float64."""
    case = replace(case, items=8)  # as telling as many, and faster
    torch.set_default_dtype(torch.float64)
    try:
        model = case.model()
        at_first, optimizer = weights(model), sgd(model)
        for window in windows(case.batches(updates), N):
            mean_loss(model, {key: torch.cat([batch[key] for batch in window]) for key in window[0]}).backward()
            optimizer.step()
            optimizer.zero_grad()
        large, made = weights(model), weights(run(case, loop, updates))
    finally:
        torch.set_default_dtype(torch.float32)
    return float((made - large).norm() / (large - at_first).norm())


def seconds(case: Case, loop: Callable) -> float:
    """For each micro-batch of one epoch."""
    skipped = math.ceil((PROBED_GRAPHS + 1) / N) if loop is audited else 1
    marks = []
    gc.collect()
    hook = register_optimizer_step_post_hook(lambda *_: marks.append(time.process_time()))
    try:
        run(case, loop, skipped + case.windows)
    finally:
        hook.remove()
    return (marks[-1] - marks[skipped - 1]) / (case.windows * N)


def measure(case: Case, names: list[str]) -> dict:
    """Every loop in one case. A loop that makes other updates is an error."""
    torch.set_num_threads(1)
    loops = {name: LOOPS[name] for name in names}
    found: dict = {name: {"error": error(case, loop)} for name, loop in loops.items()}
    if unequal := [name for name in names if not found[name]["error"] < EXACT]:
        raise ValueError(f"not the updates of large batches: {', '.join(unequal)}")
    taken = {name: [] for name in names}
    gc.collect()
    gc.freeze()  # what libraries have made when they were imported isn't collected, nor searched when an audit begins
    for k in range(case.rounds):
        for name in [*names[k % len(names) :], *names[: k % len(names)]]:
            taken[name].append(seconds(case, loops[name]))
    gc.unfreeze()
    by_hand = [statistics.mean(pair) for pair in zip(*map(taken.get, BY_HAND), strict=True)]
    for name in names:
        beside = taken[BY_HAND[0]] if name == BY_HAND[1] else by_hand
        ratios = [each / hand for each, hand in zip(taken[name], beside, strict=True)]
        quartiles = statistics.quantiles(ratios, n=4, method="inclusive")
        found[name] |= dict(zip(("low", "ratio", "high"), (round(ratio, 4) for ratio in quartiles), strict=True))
    sizes = [p.numel() for p in case.model().parameters()]
    said = {"n": N, "tensors": len(sizes), "weights": sum(sizes), "rounds": case.rounds}
    return said | {"seconds": round(statistics.median(by_hand), 7), "loops": found}


# Tables.


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms"


def spread(loop: dict) -> str:
    return f"{loop['ratio']:.2f} ({loop['low']:.2f} to {loop['high']:.2f})"


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def heading(found: dict) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"On {found['machine']}, {found['date']}, with {versions}:"


def errors(name: str) -> list[str]:
    """Of the plain form and of the one that counts tokens: full windows, and short if inexact."""
    measured = json.loads(read("measurements/side_by_side.json"))["rows"]
    kept = {f"{row['library']}, {row['form']}": row for row in measured if row["ranks"] == 1}
    rows = [kept.get(form) for form in FORMS.get(name, ("", ""))]
    both = [
        ["exact" if row[which] < EXACT else f"{row[which]:.0%}" for which in ("full", "short")] if row else [""]
        for row in rows
    ]
    return [", short ".join(dict.fromkeys(texts)) for texts in both]


def times_table(found: dict) -> str:
    """The loops over the sizes of a step, and beside them what doesn't depend on it."""
    cases = found["cases"]
    head = ["loop", *(milliseconds(case["seconds"]) for case in cases), "error, plain form", "counting tokens"]
    names = list(cases[0]["loops"])[1:]  # the first is what the others are compared with
    return table(head, ([name, *(spread(case["loops"][name]) for case in cases), *errors(name)] for name in names))


def on_the_site(text: str, found: dict) -> str:
    """The page about the loop with the record's table."""
    shown = "\n\n".join(["", heading(found), times_table(found), ""])
    return re.sub("(?<=<!-- times -->).*(?=<!-- /times -->)", shown, text, flags=re.S)


def main() -> None:
    write = asked_to_write(__doc__.splitlines()[0], OUT)
    found = {
        "date": str(date.today()),
        "machine": f"one thread of a CPU ({platform.machine()})",
        "versions": {name: version(name).partition("+")[0] for name in PACKAGES},
        "cases": [measure(case, list(LOOPS)) for case in tqdm(CASES)],
    }
    print(heading(found), times_table(found), sep="\n\n")
    if write:
        title = "Time of train_epoch, of a loop by hand and of libraries: tests/benchmarks/compare.py"
        keep(OUT, title, found)
        PAGE.write_text(on_the_site(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
