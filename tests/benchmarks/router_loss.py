"""Records how much a router's balance loss counts under Trainer: `python tests/benchmarks/router_loss.py`.

The same four words, as one micro-batch or as four of one word each: four copies, so that a mean of
four balance losses is the balance loss of all. Small models, in float32. Needs transformers.
"""

import hashlib
import json
import tempfile
from datetime import UTC, datetime

import torch
import transformers

from course_utils import data

OUT = data.folder() / "measurements" / "router_loss.json"
SIZES = {
    "vocab_size": 27, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "router_jitter_noise": 0.0,
}  # fmt: skip
MODELS = {
    "Mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "Qwen3-MoE": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
}
word = [ord(letter) - ord("a") + 1 for letter in "accumulation"]
copies = [{"input_ids": torch.tensor(word), "labels": torch.tensor(word)}] * 4


def gradient(name, coefficient, size):
    """The gradient of one update of four samples in micro-batches of a size, before the step."""
    config, kind = MODELS[name]
    torch.manual_seed(0)
    model = kind(config(**SIZES, router_aux_loss_coef=coefficient))
    found = []

    class Reads(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))

    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder, per_device_train_batch_size=size, gradient_accumulation_steps=4 // size, max_steps=1,
            max_grad_norm=0.0, report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        trainer = transformers.Trainer(model, args, train_dataset=copies, callbacks=[Reads()])
        trainer.train()
    return found[0]


rows = []
for name in MODELS:
    plain = {size: gradient(name, 0.0, size) for size in (4, 1)}
    balance = {size: gradient(name, 1.0, size) - plain[size] for size in (4, 1)}
    times = (balance[1] @ balance[4] / (balance[4] @ balance[4])).item()
    off = ((plain[1] - plain[4]).norm() / plain[4].norm()).item()
    rest = ((balance[1] - times * balance[4]).norm() / balance[1].norm()).item()
    rows.append({"model": name, "n": 4, "balance_times": times, "rest": rest, "cross_entropy_off": off})
    print(rows[-1])

versions = {"torch": torch.__version__, "transformers": transformers.__version__}
record = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "device": "CPU", "dtype": "float32", "versions": versions}
OUT.write_text(json.dumps(record | {"rows": rows}) + "\n", encoding="utf-8")
print(hashlib.sha256(OUT.read_bytes()).hexdigest())
