"""Draws the picture of the README: `python docs/readme_picture.py`."""

from pathlib import Path

import torch
from torch.nn import functional as F

from course_utils import digits, mlp, plots, record
from course_utils.ask.display import png

torch.set_default_dtype(torch.float64)
images, labels = digits()
panels = {}
for zero in (True, False):
    torch.manual_seed(0)
    model = mlp(64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as trace:
        for x, y in zip(images[:160].split(32), labels[:160].split(32), strict=True):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if zero:
                optimizer.zero_grad()
    panels[f"with{'' if zero else 'out'} zero_grad(): micro-batches in each update {trace.updates()}"] = trace

(Path(__file__).parent.parent / ".github" / "ledger.png").write_bytes(png(plots.ledgers(panels)))
