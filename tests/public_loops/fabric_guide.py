"""The loop of Lightning Fabric's guide to accumulation, with `Fabric` written out.

https://lightning.ai/docs/fabric/stable/advanced/gradient_accumulation.html
"""

from contextlib import nullcontext

import torch
from torch import nn


class Fabric:
    def no_backward_sync(self, module, enabled=True):
        return nullcontext()

    def backward(self, loss):
        loss.backward()


torch.manual_seed(0)
fabric = Fabric()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataloader = [(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(40)]

for iteration, (input, target) in enumerate(dataloader):
    is_accumulating = iteration % 8 != 0

    with fabric.no_backward_sync(model, enabled=is_accumulating):
        output = model(input)
        loss = nn.functional.cross_entropy(output, target)
        fabric.backward(loss)

    if not is_accumulating:
        optimizer.step()
        optimizer.zero_grad()
