"""The loop of many guides: a step at every N-th micro-batch or the last, divided by N.

https://github.com/Lightning-AI/pytorch-lightning/issues/19987
"""

import torch
from torch import nn

torch.manual_seed(0)
accum_iter = 4
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data_loader = [(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(10)]

for _epoch in range(3):
    for batch_idx, (inputs, labels) in enumerate(data_loader):
        preds = model(inputs)
        loss = criterion(preds, labels)

        loss = loss / accum_iter

        loss.backward()

        if ((batch_idx + 1) % accum_iter == 0) or (batch_idx + 1 == len(data_loader)):
            optimizer.step()
            optimizer.zero_grad()
