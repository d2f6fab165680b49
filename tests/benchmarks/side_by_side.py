"""How far some libraries' updates are from the large batch: `python tests/benchmarks/side_by_side.py [--write]`.

Needs `pip install -e ".[bench]"`. If a library is not installed, its row says so.

**Workload.** One epoch of next-letter prediction, float64, CPU: 14 micro-batches of 1 to 12 words, padded (label -100
where there is nothing to predict), with 8 to 99 valid tokens each; N = 4, so the last window holds 2. Every library
gets exactly these micro-batches in this order. The learning rate is 0, so every update is measured at the same weights.
There is no clipping (the Trainer of transformers would clip by default).

**What is measured.** At each step of the torch optimizer: the gradient, and the window, which is the micro-batches that
went through the model since the previous step. Both are read when the step ends, because Lightning runs the window's
last backward pass inside it.

**The rule.** The k-th update is compared with the large batch of the k-th window that was asked for: micro-batches 0-3,
4-7, 8-11 and 12-13, each window padded to one batch, the mean over its valid tokens. The error is the norm of the
difference over the norm of the large batch's gradient: the worst of the full windows (4 micro-batches), then of the
short ones. If a library made other windows, a second row compares each update with the large batch of its own window.
Below each row is what the auditor (`course_utils.audit`) finds in one more epoch.
"""

import argparse
import json
import logging
import tempfile
import warnings
from datetime import date
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from math import ceil, isnan
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from course_utils import train_epoch, windows, words
from course_utils.audit import audit

N = 4
WORDS = (1, 12, 3, 6, 2, 1, 9, 4, 12, 1, 1, 5, 2, 10)  # in each micro-batch
BAR = 1e-12  # for the course's loop
OUT = Path(__file__).parents[2] / "data" / "measurements" / "side_by_side.json"


def together(batches):
    """Several batches as one, padded to their longest row."""
    letters, labels = ([row for batch in batches for row in batch[name]] for name in ("letters", "labels"))
    return {"letters": pad_sequence(letters, True), "labels": pad_sequence(labels, True, padding_value=-100)}


def workload():
    chosen = [word for word in words() if len(word) > 1]
    order = iter(torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0)).tolist())

    def one_word():
        codes = torch.tensor([[ord(letter) - ord("a") + 1 for letter in chosen[next(order)]]])
        return {"letters": codes[:, :-1], "labels": codes[:, 1:]}

    return [together([one_word() for _ in range(size)]) for size in WORDS]


def tokens(batch):
    return int((batch["labels"] != -100).sum())


def loss_fn(model, batch, reduction="mean"):
    return F.cross_entropy(model(batch["letters"]).flatten(0, 1), batch["labels"].flatten(), reduction=reduction)


def this_course(model, optimizer, batches):
    train_epoch(model, batches, loss_fn, optimizer, n=N, weight=tokens)


def accelerated(*parts):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=N)
    return accelerator, *accelerator.prepare(*parts)


def accelerate_accumulate(model, optimizer, batches):
    """The finished code of Accelerate's guide to gradient accumulation."""
    accelerator, model, optimizer, batches = accelerated(model, optimizer, batches)
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_fn(model, batch))
            optimizer.step()
            optimizer.zero_grad()


def accelerate_tokens(model, optimizer, batches):
    """The skeleton in the same guide's section on samples of variable size, for one process."""
    accelerator, model, optimizer, batches = accelerated(model, optimizer, batches)
    iterator, updates = iter(batches), ceil(len(batches) / N)
    for update in range(updates):
        window = [next(iterator) for _ in range(N if update < updates - 1 else len(batches) % N or N)]
        num_items_in_batch = accelerator.gather(sum(batch["labels"].ne(-100).sum() for batch in window)).sum().item()
        for batch in window:
            loss = loss_fn(model, batch, "sum") * N * accelerator.num_processes / num_items_in_batch
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def lightning_trainer(model, optimizer, batches):
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch):
            return loss_fn(self.model, batch)

        def configure_optimizers(self):
            return optimizer

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    where = {"accelerator": "cpu", "devices": 1, "precision": "64-true"}
    Trainer(max_epochs=1, accumulate_grad_batches=N, **where, **quiet).fit(Module(), batches)


def lightning_fabric(model, optimizer, batches):
    """Fabric's guide to efficient gradient accumulation, with 4 instead of its 8."""
    from lightning import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    model, optimizer = fabric.setup(model, optimizer)
    for iteration, batch in enumerate(fabric.setup_dataloaders(batches)):
        is_accumulating = iteration % N != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(loss_fn(model, batch))
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()


class TakesNoCount(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, letters, labels):
        return {"loss": loss_fn(self.model, {"letters": letters, "labels": labels})}


class TakesCount(TakesNoCount):
    """The Trainer hands the window's count of labels to a model whose `forward` takes `**kwargs`."""

    def forward(self, letters, labels, **kwargs):
        total = loss_fn(self.model, {"letters": letters, "labels": labels}, "sum")
        return {"loss": total / kwargs["num_items_in_batch"]}


def transformers_trainer(model, optimizer, batches, wrapper=TakesNoCount):
    from transformers import PrinterCallback, Trainer, TrainingArguments

    quiet = {"report_to": "none", "logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    same = {"train_sampling_strategy": "sequential", "remove_unused_columns": False, "max_grad_norm": 0.0}
    size = {"num_train_epochs": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": N}
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, use_cpu=True, dataloader_pin_memory=False, **size, **same, **quiet)
        data = {"train_dataset": batches.dataset, "data_collator": lambda batches: batches[0]}
        trainer = Trainer(wrapper(model), args, optimizers=(optimizer, None), **data)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


ROWS = (  # name, the package that it needs, what trains for one epoch
    ("course_utils.train_epoch, weight=tokens", "torch", this_course),
    ("Accelerate, accumulate", "accelerate", accelerate_accumulate),
    ("Accelerate, its guide's count of tokens", "accelerate", accelerate_tokens),
    ("Lightning Trainer", "lightning", lightning_trainer),
    ("Lightning Fabric, its guide's loop", "lightning", lightning_fabric),
    ("transformers Trainer, model takes count", "transformers", partial(transformers_trainer, wrapper=TakesCount)),
    ("transformers Trainer, model takes none", "transformers", transformers_trainer),
)


def new_model():
    torch.manual_seed(0)
    f64 = {"dtype": torch.float64}
    return nn.Sequential(nn.Embedding(27, 16, **f64), nn.Tanh(), nn.Linear(16, 27, **f64))


def gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def updates(train, batches):
    """One epoch of `train`: the window and the gradient of each step of the optimizer."""
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    made, seen = [], []

    def on_forward(_, inputs):
        seen.append([torch.equal(batch["letters"], inputs[0]) for batch in batches].index(True))

    def on_step(*_):
        made.append((tuple(seen), gradient(model)))
        seen.clear()

    model.register_forward_pre_hook(on_forward)
    optimizer.register_step_post_hook(on_step)
    train(model, optimizer, DataLoader(batches, batch_size=None))
    return made


def audited(train, batches):
    """What the auditor finds in one epoch of `train`, told that the window is N: (level, rule), errors first."""
    model = new_model()
    with audit(window=N) as report:
        train(model, torch.optim.SGD(model.parameters(), lr=0.0), DataLoader(batches, batch_size=None))
    return [(finding.level, finding.rule) for finding in report.findings]


def errors(made, asked, batches):
    """The worst relative error of the full windows and of the short ones."""
    full, short = [], []
    for (_, got), window in zip(made, asked, strict=False):  # there may be more updates than windows, or fewer
        model = new_model()
        loss_fn(model, together([batches[i] for i in window])).backward()
        error = (got - gradient(model)).norm() / gradient(model).norm()
        (full if len(window) == N else short).append(error.item())
    return max(full, default=float("nan")), max(short, default=float("nan"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"keep the figures in data/measurements/{OUT.name}")
    write, rows = parser.parse_args().write, []
    logging.disable(logging.WARNING)  # hides the libraries' tips, but not their errors
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)  # Fabric casts what its model returns to this
    batches = workload()
    asked = [tuple(window) for window in windows(range(len(batches)), N)]
    print("valid tokens per micro-batch:", *map(tokens, batches))
    print(f"{'':41}{'updates':>7}  {'windows':22}{'full':>10}{'short':>10}")
    for name, package, train in ROWS:
        if find_spec(package) is None:
            print(f"{name:41}{package} is not installed")
            continue
        made = updates(train, batches)
        own = [window for window, _ in made]
        spans = " ".join(f"{window[0]}-{window[-1]}" for window in own)
        full, short = errors(made, asked, batches)
        print(f"{name:41}{len(made):7}  {spans:22}{full:10.1e}{short:10.1e}")
        findings = audited(train, batches)
        print(f"{'  auditor: ' + (', '.join(f'{level} {rule}' for level, rule in findings) or 'nothing')}")
        short = None if isnan(short) else short
        rows.append({"loop": name, "windows": own, "full": full, "short": short, "findings": findings})
        if own != asked:
            print(f"{'  against its own windows':72}{'{:10.1e}{:10.1e}'.format(*errors(made, own, batches))}")
        if train is this_course:
            assert max(full, short) <= BAR, f"the course's loop is more than {BAR} from the large batch"
    packages = ("torch", "accelerate", "lightning", "transformers")
    versions = {name: version(name) for name in packages if find_spec(name)}
    print("versions:", ", ".join(f"{name} {number}" for name, number in versions.items()))
    if write:
        found = {"date": str(date.today()), "versions": versions, "asked": asked, "n": N, "rows": rows}
        OUT.write_text(json.dumps(found, allow_nan=False).replace("}, {", "},\n{") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
