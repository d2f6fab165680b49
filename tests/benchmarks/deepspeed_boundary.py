"""Which micro-batches DeepSpeed's step uses: `python tests/benchmarks/deepspeed_boundary.py`.

Needs `pip install deepspeed`, a C++ compiler and ninja; no GPU. Not part of the extra `bench`. Two gloo ranks, float32,
one linear layer, SGD with learning rate 1, four micro-batches on each rank, each loss divided by 4. The step is
compared with the mean of all eight micro-batches and with the share of the last two.

Recorded on a CPU, 2026-11-22, with DeepSpeed 0.19.8 and PyTorch 2.13.0:

| configuration | ZeRO stage | the step holds |
| --- | --- | --- |
| gradient_accumulation_steps 1 | 0, 3 | all micro-batches |
| gradient_accumulation_steps 1 | 1, 2 | the last micro-batch of each rank |
| gradient_accumulation_steps 4, a step after each backward pass | 2 | all |
| set_gradient_accumulation_boundary before each backward pass | 2 | all |
| managed_gradient_accumulation false | 2, 3 | all |
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

N, RANKS = 4, 2
CASES = [
    *(("gradient_accumulation_steps 1", stage) for stage in range(4)),
    ("gradient_accumulation_steps 4", 2),
    ("set_gradient_accumulation_boundary", 2),
    ("managed_gradient_accumulation false", 2),
    ("managed_gradient_accumulation false", 3),
]


def on_a_rank(rank: int, case: str, stage: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "LOCAL_RANK": str(rank)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_SIZE": str(RANKS), "DS_ACCELERATOR": "cpu"}
    import deepspeed

    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(4, 1, bias=False), torch.randn(RANKS, N, 3, 4)
    before = model.weight.detach().clone().flatten()
    everything, last = inputs.mean((0, 1, 2)), inputs[:, -1].mean((0, 1)) / N

    managed = case == "gradient_accumulation_steps 4"
    config = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": N if managed else 1}
    config |= {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    if case == "managed_gradient_accumulation false":
        config["managed_gradient_accumulation"] = False
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config, dist_init_required=False)
    for k in range(N):
        if case == "set_gradient_accumulation_boundary":
            engine.set_gradient_accumulation_boundary(k == N - 1)
        loss = engine(inputs[rank, k]).mean()
        engine.backward(loss if managed else loss / N)  # with N in its configuration, the engine divides
        if managed:
            engine.step()
    if not managed:
        engine.step()

    with deepspeed.zero.GatheredParameters([model.weight], enabled=stage == 3):
        moved = before - model.weight.detach().flatten()
    names = [name for name, want in (("all", everything), ("the last", last)) if torch.allclose(moved, want, atol=1e-5)]
    if rank == 0:
        print(f"RESULT {case}, ZeRO-{stage}: {', '.join(names) or 'neither'}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for case in CASES:
        processes.spawn(on_a_rank, case, nprocs=RANKS)
