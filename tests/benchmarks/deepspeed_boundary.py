"""Which micro-batches DeepSpeed's step uses: `python tests/benchmarks/deepspeed_boundary.py`.

Needs `pip install deepspeed`, a C++ compiler and ninja; no GPU. Two gloo ranks, float32, one linear layer, SGD with
learning rate 1, four micro-batches of 1 to 5 samples on each rank. Each loss is a mean, divided by 4; in the last cases
it is a sum, times the ranks, over the samples of all ranks, as in notebook *frameworks*.

Recorded on a CPU, 2026-11-28, with DeepSpeed 0.19.8 and PyTorch 2.13.0. With gradient_accumulation_steps 1, ZeRO-0 and
ZeRO-3 step on all micro-batches, ZeRO-1 and ZeRO-2 on the last of each rank; all other cases step on all, and with sums
over the count every sample counts the same.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

N, RANKS = 4, 2
SIZES = ((1, 3, 2, 4), (2, 2, 5, 1))  # samples in each rank's micro-batches
CASES = [
    *(("gradient_accumulation_steps 1", stage) for stage in range(4)),
    ("gradient_accumulation_steps 4", 2),
    ("set_gradient_accumulation_boundary", 2),
    ("managed_gradient_accumulation false", 2),
    ("managed_gradient_accumulation false", 3),
    *(("managed_gradient_accumulation false, sums over the count", stage) for stage in range(4)),
]


def on_a_rank(rank: int, case: str, stage: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "LOCAL_RANK": str(rank)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_SIZE": str(RANKS), "DS_ACCELERATOR": "cpu"}
    import deepspeed

    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    inputs = [[torch.randn(size, 4) for size in sizes] for sizes in SIZES]
    before = model.weight.detach().clone().flatten()
    total = sum(map(sum, SIZES))
    means = torch.stack([torch.stack([batch.mean(0) for batch in mine]) for mine in inputs])
    wanted = {
        "all": means.mean((0, 1)),
        "all, and every sample counts the same": torch.cat([*inputs[0], *inputs[1]]).mean(0),
        "the last micro-batch of each rank": means[:, -1].mean(0) / N,
    }

    managed = case == "gradient_accumulation_steps 4"
    config = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": N if managed else 1}
    config |= {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    if case.startswith("managed_gradient_accumulation false"):
        config["managed_gradient_accumulation"] = False
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config, dist_init_required=False)
    for k in range(N):
        if case == "set_gradient_accumulation_boundary":
            engine.set_gradient_accumulation_boundary(k == N - 1)
        losses = engine(inputs[rank][k])
        if case.endswith("sums over the count"):
            engine.backward(losses.sum() * RANKS / total)
        else:
            engine.backward(losses.mean() / (1 if managed else N))  # with N in its configuration, the engine divides
        if managed:
            engine.step()
    if not managed:
        engine.step()

    with deepspeed.zero.GatheredParameters([model.weight], enabled=stage == 3):
        moved = before - model.weight.detach().flatten()
    names = [name for name, want in wanted.items() if torch.allclose(moved, want, atol=1e-5)]
    if rank == 0:
        print(f"RESULT {case}, ZeRO-{stage}: {', '.join(names) or 'neither'}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for case in CASES:
        processes.spawn(on_a_rank, case, nprocs=RANKS)
