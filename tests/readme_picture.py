"""Draws the picture of the README: `python tests/readme_picture.py`."""

from pathlib import Path

import torch
from torch.nn import functional as F

from course_utils import digits, ledger, mlp, record
from course_utils.practice.display import png

torch.set_default_dtype(torch.float64)
images, labels = digits()
torch.manual_seed(0)
models = [mlp(64, 32, 10), mlp(64, 32, 10)]
models[1].load_state_dict(models[0].state_dict())
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
with record() as trace:
    for x, y in zip(images[:160].split(32), labels[:160].split(32), strict=True):
        for model, optimizer in zip(models, optimizers, strict=True):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if model is models[0]:
                optimizer.zero_grad()

figure = ledger(trace, {"SGD": "with zero_grad()", "SGD 2": "without"})
(Path(__file__).parent.parent / ".github" / "ledger.png").write_bytes(png(figure))
