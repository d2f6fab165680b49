"""How far libraries' updates are from the large batch: `python tests/benchmarks/side_by_side.py`.

On one rank and on two. Needs `pip install -e ".[bench]"`. Runs the loops of the notebook
frameworks, which learners copy. `--write` keeps the rows, which the notebook, README and the site
show.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from itertools import accumulate, pairwise
from math import nan
from operator import itemgetter
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import Ranks
from course_utils.data import folder, read

ROOT = Path(__file__).parents[2]
OUT = folder() / "measurements" / "side_by_side.json"
EXACT = 1e-12  # a relative error below this is rounding, in float64
LIBRARIES = {  # of the notebook's tables, and the package that each needs
    "this course": "torch",
    "torchtitan's loop": "torch",
    "Accelerate": "accelerate",
    "transformers Trainer": "transformers",
    "Lightning Trainer": "lightning",
    "Lightning Fabric": "lightning",
}
PACKAGES = tuple(dict.fromkeys(LIBRARIES.values()))

TRAINER = {  # for the Trainer of transformers: an epoch on this CPU in order, no files
    "output_dir": gettempdir(),
    "num_train_epochs": 1,
    "per_device_train_batch_size": 1,
    "train_sampling_strategy": "sequential",
    "remove_unused_columns": False,
    "use_cpu": True,
    "save_strategy": "no",
    "disable_tqdm": True,
}
# Options of Lightning.
QUIET = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


def rank_options() -> dict:
    """Options of Lightning and Fabric for this rank: CPU, DDP on several ranks, and float64."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    strategy = "ddp" if ranks > 1 else "auto"
    return {"accelerator": "cpu", "devices": ranks, "strategy": strategy, "precision": "64-true"}


def epoch(library: str, loop, model, batches: list) -> None:
    """Runs a loop on this rank with a loader, and with the library's options."""
    options = {
        "transformers Trainer": TRAINER,
        "Lightning Trainer": dict.fromkeys(QUIET, False) | {"max_epochs": 1} | rank_options(),
        "Lightning Fabric": rank_options(),
    }
    shards_itself = library in ("Accelerate", "transformers Trainer", "Lightning Fabric")
    sampler = None if shards_itself or not dist.is_initialized() else DistributedSampler(batches, shuffle=False)
    loader = DataLoader(batches, batch_size=1, collate_fn=itemgetter(0), sampler=sampler)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # Accelerate asks for it on several ranks
    with quiet():
        loop(model, loader, **options.get(library, {}))


def one_epoch(library: str, loop, new_model, batches: list) -> tuple[tuple[int, ...], list[torch.Tensor], int]:
    """On this rank: each update's micro-batches, counted, and gradient; the scheduler's steps."""
    model, counts, gradients, schedulers, create = new_model(), [0], [], [], LRScheduler.__init__

    def on_forward(*_):
        counts[-1] += 1

    def on_step(optimizer, *_):
        counts.append(0)
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients.append(torch.cat([getattr(grad, "full_tensor", grad.clone)().flatten() for grad in grads]))

    def created(scheduler, *arguments, **more):
        schedulers.append(scheduler)
        create(scheduler, *arguments, **more)

    model.register_forward_pre_hook(on_forward)
    with register_optimizer_step_post_hook(on_step), patch.object(LRScheduler, "__init__", created):
        epoch(library, loop, model, batches)
    return tuple(counts[:-1]), gradients, max((scheduler.last_epoch for scheduler in schedulers), default=0)


def errors(library: str, loop, names: dict, pieces: list, two: Ranks | None = None) -> dict:
    """An epoch's largest errors, relative to the large batches; two ranks take pieces in turns."""
    arguments = library, loop, names["letter_model"], [names["collate"](piece) for piece in pieces]
    ((counts, gradients, scheduled), *others) = two.run(one_epoch, *arguments) if two else [one_epoch(*arguments)]
    assert all(other[0] == counts for other in others), "the ranks' windows differ"
    ranks, every = 1 + len(others), names["N"] * (1 + len(others))
    windows = [[*range(start, end)] for start, end in pairwise(accumulate((n * ranks for n in counts), initial=0))]
    found = []
    for window, gradient in zip(windows, gradients, strict=True):
        model = names["letter_model"]()
        names["mean_loss"](model, names["collate"]([word for k in window for word in pieces[k]])).backward()
        large = names["flat_gradient"](model)
        found.append((len(window) == every, float((gradient - large).norm() / large.norm())))
    return {
        "windows": windows,
        "regular": windows == [[*range(len(pieces))[k : k + every]] for k in range(0, len(pieces), every)],
        "largest": max(error for _, error in found),
        "full": max((error for is_full, error in found if is_full), default=nan),
        "short": max((error for is_full, error in found if not is_full), default=nan),
        "scheduled": scheduled,
    }


def of_the_notebook(libraries: Iterable[str] = tuple(LIBRARIES)) -> dict:
    """The notebook's names after its last loop; its `record` of `libraries` is made here."""
    cells = json.loads((ROOT / "notebooks" / "deeper" / "frameworks.ipynb").read_text(encoding="utf-8"))["cells"]
    end = next(k for k, cell in enumerate(cells) if cell["source"][0].startswith("## Your turn"))
    names = {"__name__": "__main__"}

    def measured(library, **loops):
        record = names["record"]
        if library in libraries:
            record["rows"] = [row for row in record["rows"] if row["library"] != library]
            for name, loop in loops.items():
                row, ragged = {"library": library, "form": name.replace("_", " ")}, names["ragged"]
                one = row | {"ranks": 1} | errors(library, loop, names, ragged[: len(ragged) // 2])
                one |= {which: errors(library, loop, names, names[which])["largest"] for which in ("equal", "fixed")}
                record["rows"] += [one, row | {"ranks": 2} | errors(library, loop, names, ragged, two)]
        return recorded(library, **loops)

    def measured_anew(library, what, measure):
        if library in libraries:
            names["record"]["kept"][f"{library}: {what}"] = measure()
        return kept(library, what, measure)

    with Ranks(2, timeout=300) as two:
        for source in ("".join(cell["source"]) for cell in cells[:end] if cell["cell_type"] == "code"):
            exec(compile(source, "frameworks.ipynb", "exec"), names)
            names["predict"] = lambda *_: SimpleNamespace(reveal=lambda *_, **more: None)
            names["show_table"] = lambda caption, rows: print(caption, *map(" | ".join, rows), sep="\n")
            if "def recorded" in source:
                recorded, kept = names["recorded"], names["kept"]
                names |= {"recorded": measured, "kept": measured_anew, "epoch": epoch}
    return names


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


def keep(path: Path, title: str, found: dict, origin: str = "") -> None:
    """Writes a record of the course, and what the manifest says of it."""
    content = (json.dumps(found, allow_nan=False).replace("}, {", "},\n{") + "\n").encode()
    path.write_bytes(content)
    said = json.loads(read("manifest.json"))
    said[f"measurements/{path.name}"] = {
        "title": title,
        "origin": origin or f"measured for this course on {found.get('machine', 'CPU')}, {found['date']}",
        "licence": "CC BY 4.0",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (folder() / "manifest.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def asked_to_write(description: str, out: Path) -> bool:
    """Reads the options; a library that isn't installed is an error."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help=f"keep what is found in data/measurements/{out.name}")
    write = parser.parse_args().write
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        sys.exit(f'not installed: {", ".join(missing)}. Run pip install -e ".[bench]" first.')
    logging.disable(logging.WARNING)
    return write


def main() -> None:
    write = asked_to_write(__doc__.splitlines()[0], OUT)
    names = of_the_notebook()
    if write:
        found = {"date": str(date.today()), "n": names["N"], "versions": {name: version(name) for name in PACKAGES}}
        found |= {which: names["record"][which] for which in ("rows", "kept")}
        title = "Windows and errors of the gradients of Accelerate, Lightning and transformers: "
        keep(OUT, title + "what tests/benchmarks/side_by_side.py has written", found)


if __name__ == "__main__":
    main()
