"""nanoGPT's training loop as it was before it divided the loss, with a small model and random tokens.

https://github.com/karpathy/nanoGPT/issues/168
"""

import torch
from torch import nn
from torch.amp import GradScaler

torch.manual_seed(0)
gradient_accumulation_steps, max_iters, grad_clip, learning_rate = 5, 6, 1.0, 1e-2
batch_size, block_size, vocabulary = 4, 8, 11


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary)

    def forward(self, idx, targets):
        logits = self.lm_head(self.wte(idx))
        return logits, nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_batch(split):
    data = torch.randint(vocabulary, (batch_size, block_size + 1))
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


model = GPT()
scaler = GradScaler("cpu", enabled=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num = 0
X, Y = get_batch("train")
while True:
    for param_group in optimizer.param_groups:
        param_group["lr"] = learning_rate
    for _ in range(gradient_accumulation_steps):
        logits, loss = model(X, Y)
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
