"""How far a loop's updates are from the large batch, on one rank and on two; recorded where a library is missing."""

import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from itertools import chain
from tempfile import gettempdir
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
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
    "dataloader_pin_memory": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
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


class Updates(NamedTuple):
    """One epoch of a loop."""

    windows: list[list[int]]  # the micro-batches of each update, of all ranks
    full: float | None  # the largest relative error of the updates of a full window
    short: float | None  # and of shorter ones; None if there is none
    collectives: list[list[str]]  # of rank 0, before each step
    scheduled: int  # the scheduler's steps, of rank 0


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
    recorded: dict = field(default_factory=lambda: {"versions": {}, "rows": [], "two_ranks": []})
    rows: list[dict] = field(default_factory=list, init=False)
    loops: dict[tuple[str, str], Callable] = field(default_factory=dict, init=False)  # by library and form
    two: Ranks = field(default_factory=lambda: Ranks(2, backend="gloo", timeout=300), init=False)

    def compare(self, library: str, package: str = "torch", **loops: Callable) -> list[dict]:
        """Measures each loop on one rank and on two, or reads the record unless `package` runs. Prints a table.

        The columns are the largest error with `equal` and with `fixed`; the errors of the full windows and of short
        ones, on one rank and on two; the micro-batches of each update on one rank; the scheduler's steps in the epoch,
        on one rank and on two; and the collectives of a full window on two ranks: those that add up gradients, and
        others.

        Args:
            library: What the rows are called.
            package: What the loops import.
            **loops: By the name of the form, such as `guide` and `correct`.

        Returns:
            A row for each form and number of ranks.
        """
        found = []
        print(f"{library:24}{'equal':>7}{'fixed':>7}{'one rank':>14}{'two ranks':>14}  updates  scheduler  collectives")
        for name, loop in loops.items():
            form = name.replace("_", " ")
            self.loops[library, form] = loop
            rows = self._measured(library, form, loop) if self.runs(package) else self._read(library, form)
            errors = [rows[0]["equal"], rows[0]["fixed"], *(row[which] for row in rows for which in ("full", "short"))]
            sizes = " ".join(str(len(window)) for window in rows[0]["windows"])
            scheduled, sent = [row["scheduled"] for row in rows], f"{rows[1]['reductions']} + {rows[1]['others']}"
            print(f"  {form:22}{''.join(f'{shown(error):>7}' for error in errors)}  {sizes:9}{scheduled}      {sent}")
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

    def updates(self, loop: Callable, ranks: int = 1, pieces: Sequence[Sequence] | None = None) -> Updates:
        """One epoch of a loop, in this process or on two ranks; of `pieces` instead of its share of all, if given."""
        pieces = self.pieces[: len(self.pieces) * ranks // 2] if pieces is None else pieces
        arguments = (loop, self.new_model, [self.collate(list(piece)) for piece in pieces])
        made = self.two.run(one_epoch, *arguments) if ranks == 2 else [one_epoch(*arguments)]
        windows = [sorted(chain(*places)) for places in zip(*[rank[0] for rank in made], strict=True)]
        return Updates(windows, *self._errors(windows, made[0][1], pieces, self.n * ranks), *made[0][2:])

    def close(self) -> None:
        """Ends the two ranks; the next loop starts them again."""
        self.two.close()

    def _measured(self, library: str, form: str, loop: Callable) -> list[dict]:
        rows = []
        for ranks in (1, 2):
            found = self.updates(loop, ranks)
            steady = found.collectives[-2:][0]  # the last full window: DDP rearranges its buckets in an earlier one
            reductions = sum("reduce" in name and "small" not in name for name in steady)
            every, places = self.n * ranks, range(len(self.pieces) * ranks // 2)
            row = {"library": library, "form": form, "ranks": ranks, "windows": found.windows}
            row["regular"] = found.windows == [[*places[k : k + every]] for k in places[::every]]
            row |= {"full": found.full, "short": found.short}
            row |= {"reductions": reductions, "others": len(steady) - reductions}
            rows.append(row | {"scheduled": found.scheduled})
        for which in ("equal", "fixed"):
            found = self.updates(loop, pieces=getattr(self, which))
            rows[0][which] = max(error for error in (found.full, found.short) if error is not None)
        return rows

    def _read(self, library: str, form: str) -> list[dict]:
        kept = self.recorded["rows"] + self.recorded["two_ranks"]
        rows = [row for row in kept if (row["library"], row["form"]) == (library, form)]
        if [row["ranks"] for row in rows] != [1, 2]:
            raise ValueError(f"a package is not installed, and nothing is recorded for {library}, {form}")
        return rows

    def _errors(
        self, windows: list[list[int]], gradients: list[Tensor], pieces: Sequence[Sequence], every: int
    ) -> tuple[float | None, float | None]:
        full, short = [], []
        for window, got in zip(windows, gradients, strict=True):
            model = self.new_model()
            self.loss_fn(model, self.collate([sample for k in window for sample in pieces[k]])).backward()
            large = torch.cat([p.grad.flatten() for p in model.parameters()])
            (short if len(window) < every else full).append(float((got - large).norm() / large.norm()))
        return max(full, default=None), max(short, default=None)


def exact(rows: Sequence[dict]) -> bool:
    """Whether all updates of these rows hold what they should, and all errors are rounding.

    >>> exact([{"regular": True, "full": 3e-16, "short": 0.0}]), exact([{"regular": False, "full": 0.0, "short": 0.0}])
    (True, False)
    """
    return all(row["regular"] and max(row["full"] or 0.0, row["short"] or 0.0) < EXACT for row in rows)


def shown(error: float | None) -> str:
    """An error as a table shows it: below 1e-12 it is rounding.

    >>> shown(3e-16), shown(0.6467), shown(None)
    ('exact', '65%', 'none')
    """
    if error is None:
        return "none"
    return "exact" if error < EXACT else f"{error:.0%}"


class _Collectives(TorchDispatchMode):
    """Names the collectives that this rank starts; a reduction of gradients is told by its size."""

    def __init__(self, smallest: int) -> None:
        super().__init__()
        self.smallest, self.names = smallest, []

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        if operation.namespace in ("c10d", "_c10d_functional"):
            name = operation._schema.name.partition("::")[2].strip("_")
            tensors = torch.utils._pytree.tree_leaves(arguments)
            size = max((tensor.numel() for tensor in tensors if isinstance(tensor, Tensor)), default=0)
            self.names.append(name if size >= self.smallest else f"small {name}")
        return operation(*arguments, **(options or {}))


def one_epoch(loop: Callable, new_model: Callable, batches: list[dict]) -> tuple[list, list[Tensor], list, int]:
    """On this rank: each update's micro-batches, gradient, and collectives since the one before; the scheduler's steps.

    A scheduler makes one step when it is created, which isn't counted.
    """
    model, seen, windows, gradients, collectives, scheduled = new_model(), [], [], [], [], [0]
    first, counter = next(iter(batches[0])), _Collectives(sum(p.numel() for p in model.parameters()) // 2)

    def on_forward(_: nn.Module, inputs: tuple, named: dict) -> None:
        (given,) = [*inputs, *named.values()]
        seen.append([torch.equal(batch[first], given) for batch in batches].index(True))

    def on_step(optimizer: Optimizer, *_: Any) -> None:
        windows.append([*seen])
        collectives.append([*counter.names])
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients.append(torch.cat([getattr(grad, "full_tensor", grad.clone)().flatten() for grad in grads]))
        seen.clear()
        counter.names.clear()

    create, step = LRScheduler.__init__, LRScheduler.step

    def created(scheduler: LRScheduler, *arguments: Any, **options: Any) -> None:
        before = scheduled[0]
        create(scheduler, *arguments, **options)
        scheduled[0] = before

    def stepped(scheduler: LRScheduler, *arguments: Any, **options: Any) -> None:
        scheduled[0] += 1
        step(scheduler, *arguments, **options)

    hooks = [model.register_forward_pre_hook(on_forward, with_kwargs=True), register_optimizer_step_post_hook(on_step)]
    try:
        LRScheduler.__init__, LRScheduler.step = created, stepped
        with undisturbed(), counter:
            loop(model, DataLoader(batches, batch_size=1, collate_fn=_first))
    finally:
        LRScheduler.__init__, LRScheduler.step = create, step
        for hook in hooks:
            hook.remove()
    return windows, gradients, collectives, scheduled[0]


def _first(batches: list) -> Any:
    return batches[0]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hides what libraries say, and undoes what they change: the environment, random states and the default dtype."""
    environment, state, dtype = dict(os.environ), random.getstate(), torch.get_default_dtype()
    if dist.is_initialized():  # libraries ask where the ranks meet, though they have met
        rank, world = str(dist.get_rank()), str(dist.get_world_size())
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", RANK=rank, LOCAL_RANK=rank)
        os.environ.update(WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                warnings.simplefilter("ignore")
                yield
    finally:
        logging.disable(logging.NOTSET)
        random.setstate(state)
        torch.set_default_dtype(dtype)
        os.environ.clear()
        os.environ.update(environment)
