"""What plan_memory finds for seven billion weights: `python tests/benchmarks/plan_seven_billion.py`, half a minute.

Nothing is trained and no card is needed: the plans are made with fake tensors. They go to
`data/measurements/seven_billion.json`, and the checksum of that file goes to the manifest. Notebook
*what else saves memory* reads it.
"""

from datetime import date
from functools import partial

import torch
from side_by_side import keep
from torch.nn import functional as F

from course_utils import data, plan_memory
from course_utils.models import Transformer

SYMBOLS, LONGEST, CARD, EFFECTIVE_BATCH = 32_000, 2048, 80 * 2**30, 256
SEQUENCES = range(1, 41)
WAYS = {  # with checkpoints, and AdamW's implementation: foreach is its default on a GPU
    "plain": (False, "foreach"),
    "checkpointed": (True, "foreach"),
    "checkpointed, fused": (True, "fused"),
}


def sequences(items):
    tokens = torch.randint(SYMBOLS, (items, LONGEST))
    return tokens, tokens


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def planned(checkpointed, implementation):
    size = {"width": 4096, "heads": 32, "blocks": 32, "longest": LONGEST}
    build = partial(Transformer, SYMBOLS, **size, checkpointed=checkpointed)
    adamw = partial(torch.optim.AdamW, **{implementation: True})
    plan = plan_memory(build, sequences, loss_fn, adamw, dtype=torch.bfloat16)
    return {name: getattr(plan, name) for name in ("weights", "gradients", "state", "activations")} | {
        "largest": plan.largest(CARD),
        "n": plan.n_for(EFFECTIVE_BATCH, CARD),
        "peaks": [plan.peak(items) for items in SEQUENCES],
        "phases": [plan.phase(items) for items in SEQUENCES],
    }


def main():
    found = {
        "date": str(date.today()),
        "torch": torch.__version__.split("+")[0],
        "card": CARD,
        "effective_batch": EFFECTIVE_BATCH,
        "sequences": list(SEQUENCES),
        "plans": {way: planned(*options) for way, options in WAYS.items()},
    }
    name = "measurements/seven_billion.json"
    title = "The memory that seven billion weights need in training, planned by plan_memory for a card of 80 GiB"
    keep(data.folder() / name, title, found, origin="written by tests/benchmarks/plan_seven_billion.py")


if __name__ == "__main__":
    main()
