"""What micro-batches of each size cost on this device: `python tests/benchmarks/measure_device.py [--rounds 5]`.

A `Transformer` is trained on one effective batch, in micro-batches of 1, 2, 4, ... samples, in several dtypes, with and
without checkpointing. Recorded are the allocator's peak, the peak that `plan_memory` predicts, and the seconds per
update, for `train_epoch` and for the same loop written by hand. With a CUDA device the model is larger and runs there;
otherwise it runs on one thread of the CPU. The raw numbers go to `data/measurements/<device>.json`, and the checksum of
that file goes to the manifest.
"""

import argparse
import statistics
import time
from contextlib import nullcontext
from datetime import date

import torch
from side_by_side import keep
from torch.amp import GradScaler
from torch.nn import functional as F
from tqdm import tqdm

from course_utils import data, plan_memory, train_epoch
from course_utils.memory import allocated
from course_utils.models import Transformer

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
MODEL = {"symbols": 8000, "width": 1024, "heads": 16, "blocks": 12, "longest": 512}
if not CUDA:
    MODEL = {"symbols": 500, "width": 128, "heads": 4, "blocks": 4, "longest": 64}
EFFECTIVE_BATCH = 64 if CUDA else 16
TYPES = {  # dtype of the weights, and of autocast
    "float32": (torch.float32, None),
    "bfloat16 autocast": (torch.float32, torch.bfloat16),
    "float16 autocast, scaled": (torch.float32, torch.float16),
    "bfloat16 weights": (torch.bfloat16, None),
}


def make_batch(items):
    sequences = torch.randint(MODEL["symbols"], (items, MODEL["longest"]))
    return sequences, sequences


def loss_fn(model, batch):
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def make_optimizer(weights):
    return torch.optim.AdamW(weights, foreach=CUDA)


class Training:
    """A model, its optimizer and its effective batch, cut into micro-batches."""

    def __init__(self, kind, checkpointed, items):
        weights, self.half = TYPES[kind]
        torch.manual_seed(0)
        self.n = EFFECTIVE_BATCH // items
        self.model = Transformer(**MODEL, checkpointed=checkpointed).to(DEVICE, weights)
        self.optimizer = make_optimizer(self.model.parameters())
        batch = tuple(part.to(DEVICE) for part in make_batch(items))
        self.batches = [batch] * self.n  # the same one N times, so that only one is on the device
        self.scaler = GradScaler(DEVICE, enabled=self.half is torch.float16)

    def autocast(self):
        return torch.autocast(DEVICE, self.half) if self.half else nullcontext()

    def update(self):
        train_epoch(
            self.model, self.batches, loss_fn, self.optimizer, self.n, autocast=self.autocast(), scaler=self.scaler
        )

    def update_by_hand(self):
        for batch in self.batches:
            with self.autocast():
                loss = loss_fn(self.model, batch) / self.n
            self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def peak(*setting):
    with allocated(DEVICE) as memory:
        training = Training(*setting)
        for _ in range(2):  # the second update finds the optimizer's state
            training.update()
    return memory.peak


def planned(kind, checkpointed):
    """Two plans: for windows of one micro-batch, and for longer ones."""
    weights, half = TYPES[kind]
    return {
        accumulating: plan_memory(
            lambda: Transformer(**MODEL, checkpointed=checkpointed),
            make_batch,
            loss_fn,
            make_optimizer,
            dtype=weights,
            autocast=torch.autocast("cpu", half) if half else None,
            accumulating=accumulating,
        )
        for accumulating in (False, True)
    }


def seconds(update):
    if not CUDA:
        start = time.process_time()
        update()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    update()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(rounds):
    sizes = [2**power for power in range(EFFECTIVE_BATCH.bit_length())]
    settings = [(kind, checkpointed) for kind in TYPES for checkpointed in (False, True)]
    Training("float32", False, 1).update()  # libraries allocate their workspace once and keep it
    for kind, checkpointed in (progress := tqdm(settings)):
        progress.set_description(f"{kind}{', checkpointed' * checkpointed}")
        plans = planned(kind, checkpointed)
        runs = {
            items: {
                "type": kind,
                "checkpointed": checkpointed,
                "micro_batch": items,
                "n": EFFECTIVE_BATCH // items,
                "peak_bytes": peak(kind, checkpointed, items),
                "planned_bytes": plans[items < EFFECTIVE_BATCH].peak(items),
                "seconds": [],
                "seconds_by_hand": [],
            }
            for items in sizes
        }
        trainings = {items: Training(kind, checkpointed, items) for items in sizes}
        for training in trainings.values():
            training.update()
        for _ in range(rounds):  # all sizes in turn, so that a slow moment of the machine affects them alike
            for items, training in trainings.items():
                runs[items]["seconds"].append(round(seconds(training.update), 6))
                runs[items]["seconds_by_hand"].append(round(seconds(training.update_by_hand), 6))
        del training, trainings
        yield from runs.values()


def table(runs):
    print("type (+: checkpointed)    micro-batch    peak, MiB  planned/peak  ms per item  /one batch  /by hand")
    for run in runs:
        whole = next(r for r in runs if r["n"] == 1 and all(r[name] == run[name] for name in ("type", "checkpointed")))
        ours, by_hand, one_batch = (
            statistics.median(times) for times in (run["seconds"], run["seconds_by_hand"], whole["seconds"])
        )
        print(
            f"{run['type'] + ' +' * run['checkpointed']:26}{run['micro_batch']:11}{run['peak_bytes'] / 2**20:13.1f}"
            f"{run['planned_bytes'] / run['peak_bytes']:14.3f}{1e3 * ours / EFFECTIVE_BATCH:13.3f}"
            f"{ours / one_batch:12.3f}{ours / by_hand:10.3f}"
        )


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5, help="how many times each update is timed")
    rounds = options.parse_args().rounds
    torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if CUDA else "CPU"
    found = {
        "device": device,
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "clock": "perf_counter, device synchronised" if CUDA else "process_time, one thread",
        "model": MODEL,
        "effective_batch": EFFECTIVE_BATCH,
        "runs": list(measure(rounds)),
    }
    table(found["runs"])
    name = f"measurements/{device.lower().replace(' ', '-')}.json"
    title = f"Peak memory and time of an update against the size of its micro-batches, on {device}"
    keep(data.folder() / name, title, found | {"machine": device})


if __name__ == "__main__":
    main()
