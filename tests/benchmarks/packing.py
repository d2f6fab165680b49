"""Records how far packed rows are from separate documents in transformers: `python tests/benchmarks/packing.py`.

Small models in float64, with a row of 24 words: with their own initial weights, and Llama after 400
updates on separate words. Needs transformers.
"""

import hashlib
import json
from datetime import UTC, datetime
from random import Random

import torch
import transformers
from torch.nn import functional as F

from course_utils import data, words

OUT = data.folder() / "measurements" / "packing.json"
SIZES = {"vocab_size": 27, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA = SIZES | {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
GPT2 = SIZES | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
MODELS = {
    "Llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, LLAMA),
    "Qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, LLAMA | {"head_dim": 8}),
    "GPT-2": (transformers.GPT2Config, transformers.GPT2LMHeadModel, GPT2),
}
documents = [torch.tensor([ord(c) - ord("a") + 1 for c in word]) for word in Random(0).sample(words(), 24)]
lengths = torch.tensor([len(document) for document in documents])
row = torch.cat(documents)[None]
shifted = torch.cat([F.pad(document[1:], (0, 1), value=-100) for document in documents])
going_on = torch.arange(row.numel())[None]
restarted = torch.cat([torch.arange(length) for length in lengths])[None]
number = torch.arange(24).repeat_interleave(lengths)
mask = ((number[:, None] == number) & torch.ones_like(row.T * row).tril().bool())[None, None]
added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
ones = torch.ones_like(row)
CALLS = {
    "nothing": {},
    "nothing, use_cache=False": {"use_cache": False},
    "going on, use_cache=False": {"position_ids": going_on, "use_cache": False},
    "restarted, use_cache=False": {"position_ids": restarted, "use_cache": False},
    "restarted": {"position_ids": restarted},
    "restarted, use_cache=False, mask of ones": {"position_ids": restarted, "use_cache": False, "attention_mask": ones},
    "document mask, bool": {"attention_mask": mask},
    "document mask, bool, restarted": {"attention_mask": mask, "position_ids": restarted},
    "document mask, added": {"attention_mask": added},
    "document mask, added, restarted": {"attention_mask": added, "position_ids": restarted},
}


def loss_and_gradient(model, logits, targets):
    loss = F.cross_entropy(logits, targets)
    return loss.item(), torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def measure(name, attention, model, updates):
    """Adds a row for each call."""
    alone = torch.cat([model(document[None], use_cache=False).logits[0] for document in documents])
    loss, gradient = loss_and_gradient(model, alone, shifted)
    calls = {call: (given, shifted) for call, given in CALLS.items()}
    given = {"position_ids": restarted, "use_cache": False}
    calls["restarted, use_cache=False, seams asked"] = given, F.pad(row[0, 1:], (0, 1), value=-100)
    for call, (given, targets) in calls.items():
        packed, found = loss_and_gradient(model, model(row, **given).logits[0], targets)
        off = {"loss": abs(packed - loss) / loss, "gradient": ((found - gradient).norm() / gradient.norm()).item()}
        rows.append({"model": name, "attention": attention, "updates": updates, "call": call, **off})


def train(model, updates):
    optimizer, draw = torch.optim.AdamW(model.parameters(), lr=3e-3), Random(1)
    for _ in range(updates):
        drawn = [torch.tensor([ord(c) - ord("a") + 1 for c in word]) for word in draw.sample(words(), 64)]
        inputs = torch.nn.utils.rnn.pad_sequence(drawn, batch_first=True)
        targets = F.pad(inputs[:, 1:], (0, 1))
        logits = model(inputs, use_cache=False).logits
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0).backward()
        optimizer.step()


rows = []
for name, (config, kind, sizes) in MODELS.items():
    for attention in ("sdpa", "eager"):
        torch.manual_seed(0)
        model = kind(config(**sizes, attn_implementation=attention)).double().train()
        measure(name, attention, model, 0)
        if (name, attention) == ("Llama", "sdpa"):
            train(model, 400)
            measure(name, attention, model, 400)

versions = {"torch": torch.__version__, "transformers": transformers.__version__}
record = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "device": "CPU", "dtype": "float64", "versions": versions}
head, lines = json.dumps(record)[:-1], ",\n".join(map(json.dumps, rows))
OUT.write_text(f'{head}, "rows": [{lines}]}}\n', encoding="utf-8")
print(hashlib.sha256(OUT.read_bytes()).hexdigest())
