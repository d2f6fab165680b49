"""How far a loop's updates are from the large batch, on one rank and on two; recorded where a library is missing."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from itertools import chain
from math import nan
from operator import itemgetter
from tempfile import gettempdir
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler

from course_utils.ranks.group import Ranks

EXACT = 1e-12  # a relative error below this is rounding, in float64
PACKAGES = ("torch", "accelerate", "transformers", "lightning")

TRAINER = {  # arguments for the Trainer of transformers: one epoch on this CPU, in order, without clipping or files
    "output_dir": gettempdir(),
    "num_train_epochs": 1,
    "per_device_train_batch_size": 1,
    "max_grad_norm": 0.0,
    "train_sampling_strategy": "sequential",
    "remove_unused_columns": False,
    "use_cpu": True,
    "save_strategy": "no",
    "disable_tqdm": True,
}
LIGHTNING = {  # and for Lightning's Trainer, to which `place()` belongs, too
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def place() -> dict[str, Any]:
    """What Lightning and Fabric must be told about this rank: CPU, DDP if there are several ranks, and float64.

    >>> place()
    {'accelerator': 'cpu', 'devices': 1, 'strategy': 'auto', 'precision': '64-true'}
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    strategy = "ddp" if ranks > 1 else "auto"
    return {"accelerator": "cpu", "devices": ranks, "strategy": strategy, "precision": "64-true"}


def share(loader: DataLoader) -> DataLoader:
    """A loader of this rank's micro-batches, which the ranks take in turns; with one process the loader itself.

    >>> loader = DataLoader([1, 2])
    >>> share(loader) is loader
    True
    """
    if not dist.is_initialized():
        return loader
    mine = DistributedSampler(loader.dataset, shuffle=False)
    return DataLoader(loader.dataset, sampler=mine, collate_fn=loader.collate_fn)


@dataclass
class SideBySide:
    """Runs loops that should make the update of the large batch, and measures how far they are from it.

    A loop is a function `loop(model, loader)` that trains for one epoch with learning rate 0, so that all gradients are
    those at the first weights. Each update is compared with the large batch of the micro-batches that it holds, on two
    ranks those of both. An error is the norm of the difference over the norm of the large batch's gradient.

    Args:
        pieces: The micro-batches as lists of samples; two ranks get all of them in turns, one rank the first half.
        collate: Makes one batch of a list of samples, a dict of tensors, of which the model takes the first.
        new_model: Makes the model, the same at every call.
        loss_fn: `loss_fn(model, batch)`, the mean over what counts in a batch.
        n: The micro-batches of a window on each rank.
        equal: Full windows of micro-batches in which equally much counts: what many loops are written for.
        fixed: Full windows of micro-batches with equally many samples: what a loader with a `batch_size` gives.
        recorded: What was found where all libraries were installed. A library of another version isn't run.

    Example:
        >>> equal, fixed = [["b"]] * 4, [["a", "sum"]] * 4
        >>> beside = SideBySide([["a"], ["sum"]], collate, new_model, loss_fn, 4, equal, fixed)  # doctest: +SKIP
        >>> rows = beside.compare("Accelerate", "accelerate", guide=guide, correct=correct)  # doctest: +SKIP
    """

    pieces: Sequence[Sequence]
    collate: Callable[[list], dict[str, Tensor]]
    new_model: Callable[[], nn.Module]
    loss_fn: Callable[[nn.Module, dict], Tensor]
    n: int
    equal: Sequence[Sequence]
    fixed: Sequence[Sequence]
    recorded: dict = field(default_factory=lambda: {"versions": {}, "rows": []})
    rows: list[dict] = field(default_factory=list, init=False)
    two: Ranks = field(default_factory=lambda: Ranks(2, backend="gloo", timeout=300), init=False)

    def compare(self, library: str, package: str = "torch", **loops: Callable) -> list[dict]:
        """Measures each loop on one rank and on two, or reads the record unless `package` runs. Prints a table.

        The columns are the largest error with `equal` and with `fixed`; the errors of the full windows and of short
        ones, on one rank and on two; the micro-batches of each update on one rank; and the scheduler's steps in the
        epoch, on one rank and on two.

        Args:
            library: What the rows are called.
            package: What the loops import.
            **loops: By the name of the form, such as `guide` and `correct`.

        Returns:
            A row for each form and number of ranks.
        """
        found = []
        print(f"{library:24}{'equal':>7}{'fixed':>7}{'one rank':>14}{'two ranks':>14}  updates  scheduler")
        for name, loop in loops.items():
            said = {"library": library, "form": name.replace("_", " ")}
            if self.runs(package):
                rows = [said | {"ranks": ranks} | self.epoch(loop, ranks) for ranks in (1, 2)]
                for which in ("equal", "fixed"):
                    rows[0][which] = self.epoch(loop, pieces=getattr(self, which))["largest"]
            else:
                rows = [row for row in self.recorded["rows"] if said.items() <= row.items()]
            one, two = rows
            errors = [one["equal"], one["fixed"], *(row[which] for row in rows for which in ("full", "short"))]
            sizes = " ".join(str(len(window)) for window in one["windows"])
            print(f"  {said['form']:22}{''.join(f'{shown(error):>7}' for error in errors)}", end="")
            print(f"  {sizes:9}{[one['scheduled'], two['scheduled']]}")
            found += rows
        self.rows += found
        return found

    def versions(self) -> list[str]:
        """What was run here and what is recorded, and with which versions."""
        here = [f"{name} {version(name)}" for name in PACKAGES if self.runs(name)]
        kept = [f"{name} {number}" for name, number in self.recorded["versions"].items() if not self.runs(name)]
        return [f"{what}: {', '.join(names)}" for what, names in (("run here", here), ("recorded", kept)) if names]

    def runs(self, package: str) -> bool:
        """Whether loops that need a package are run: it is torch, or installed in the version that was recorded."""
        if package == "torch" or not find_spec(package):
            return package == "torch"
        return self.recorded["versions"].get(package) in (None, version(package))

    def epoch(self, loop: Callable, ranks: int = 1, pieces: Sequence[Sequence] | None = None) -> dict[str, Any]:
        """One epoch of a loop, in this process or on two ranks; of `pieces` instead of its share of all, if given.

        Returns:
            The micro-batches of each update, of all ranks (`windows`), and whether they are those that it should hold
            (`regular`); the `largest` relative error of an update, that of `full` windows and that of `short` ones, NaN
            if there is none; and the steps that the scheduler made on rank 0 (`scheduled`).
        """
        pieces, every = pieces or self.pieces[: len(self.pieces) * ranks // 2], self.n * ranks
        arguments = (loop, self.new_model, [self.collate(list(piece)) for piece in pieces])
        made = self.two.run(one_epoch, *arguments) if ranks == 2 else [one_epoch(*arguments)]
        windows = [sorted(chain(*places)) for places in zip(*[rank[0] for rank in made], strict=True)]
        errors: dict[bool, list[float]] = {True: [], False: []}
        for window, got in zip(windows, made[0][1], strict=True):
            model = self.new_model()
            self.loss_fn(model, self.collate([sample for k in window for sample in pieces[k]])).backward()
            large = torch.cat([p.grad.flatten() for p in model.parameters()])
            errors[len(window) == every].append(float((got - large).norm() / large.norm()))
        regular = windows == [[*range(len(pieces))[k : k + every]] for k in range(0, len(pieces), every)]
        found = {"windows": windows, "regular": regular, "largest": max(errors[True] + errors[False])}
        found |= {"full": max(errors[True], default=nan), "short": max(errors[False], default=nan)}
        return found | {"scheduled": made[0][2]}

    def close(self) -> None:
        """Ends the two ranks; the next loop starts them again."""
        self.two.close()


def exact(rows: Sequence[dict]) -> bool:
    """Whether all updates of these rows hold what they should, and all errors are rounding.

    >>> exact([{"regular": True, "largest": 3e-16}]), exact([{"regular": False, "largest": 0.0}])
    (True, False)
    """
    return all(row["regular"] and row["largest"] < EXACT for row in rows)


def shown(error: float) -> str:
    """An error as a table shows it: below 1e-12 it is rounding.

    >>> shown(3e-16), shown(0.6467)
    ('exact', '65%')
    """
    return "exact" if error < EXACT else f"{error:.0%}"


def one_epoch(loop: Callable, new_model: Callable, batches: list[dict]) -> tuple[list, list[Tensor], int]:
    """On this rank: the micro-batches and the gradient of each update, and how many steps the scheduler made."""
    model, seen, windows, gradients, schedulers = new_model(), [], [], [], []
    first, create = next(iter(batches[0])), LRScheduler.__init__

    def on_forward(_: nn.Module, inputs: tuple, named: dict) -> None:
        (given,) = [*inputs, *named.values()]
        seen.append([torch.equal(batch[first], given) for batch in batches].index(True))

    def on_step(optimizer: Optimizer, *_: Any) -> None:
        windows.append([*seen])
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients.append(torch.cat([getattr(grad, "full_tensor", grad.clone)().flatten() for grad in grads]))
        seen.clear()

    def created(scheduler: LRScheduler, *arguments: Any, **options: Any) -> None:
        schedulers.append(scheduler)
        create(scheduler, *arguments, **options)

    hooks = [model.register_forward_pre_hook(on_forward, with_kwargs=True), register_optimizer_step_post_hook(on_step)]
    try:
        with quiet(), patch.object(LRScheduler, "__init__", created):
            loop(model, DataLoader(batches, batch_size=1, collate_fn=itemgetter(0)))
    finally:
        for hook in hooks:
            hook.remove()
    return windows, gradients, max((scheduler.last_epoch for scheduler in schedulers), default=0)


@contextmanager
def quiet() -> Iterator[None]:
    """Hides what libraries say, and leaves the random state as it was."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                warnings.simplefilter("ignore")
                yield
    finally:
        logging.disable(logging.NOTSET)
