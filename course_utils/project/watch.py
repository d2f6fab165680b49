"""Runs a training script, unchanged, once or several times, and writes what its optimizer did.

`python -m course_utils.project.watch FILE KILL script.py RUNS`, where RUNS is a list of lists of
arguments, in JSON. With KILL above 0 the process ends right before that update, with no warning.
Each rank adds its number to the name of the file.
"""

import json
import os
import runpy
import sys

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from course_utils.memory import saved_bytes


def watch(kill: int, script: str, arguments: list[str]) -> dict[str, Tensor | int]:
    """Runs a script in this process, as `python script.py arguments` would.

    Returns:
        `gradients`: the gradient that each step read, one row each; `weights` at the end; `peak`:
        the most bytes kept for backward at any time.
    """
    gradients, parameters = [], []

    def before_step(optimizer: Optimizer, *_) -> None:
        parameters[:] = [p for group in optimizer.param_groups for p in group["params"]]
        gradients.append(_flat([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]))
        if len(gradients) == kill:
            os._exit(0)

    torch.set_grad_enabled(True)  # which the run before may have left otherwise
    torch.set_default_dtype(torch.float32)
    sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(script)
    print("python", *sys.argv)
    hook = register_optimizer_step_pre_hook(before_step)
    with saved_bytes(nn.Module()) as saved:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
    hook.remove()
    rows = torch.stack(gradients) if gradients else torch.zeros(0, 0)
    return {"gradients": rows, "weights": _flat(parameters), "peak": saved.peak}


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0), *(tensor.detach().flatten() for tensor in tensors)])


if __name__ == "__main__":
    file, kill, script, runs = sys.argv[1:]
    seen = [watch(int(kill), script, arguments) for arguments in json.loads(runs)]
    torch.save(seen, file + os.environ.get("RANK", "0"))
