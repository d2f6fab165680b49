"""Runs a training script, unchanged, once or several times, and writes what its optimizer and its model did.

`python -m course_utils.project.watch FILE KILL script.py RUNS`, where RUNS is a list of lists of arguments, in JSON.
With KILL above 0 the process kills itself at the beginning of that forward pass, with no warning. Each rank adds its
number to the name of the file.
"""

import json
import os
import runpy
import shlex
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course_utils.memory import saved_bytes


class Seen(NamedTuple):
    """What a run did.

    Attributes:
        gradients: The gradient that each step read, one row each.
        weights: At the end.
        peak: The most bytes kept for backward at any time.
    """

    gradients: Tensor
    weights: Tensor
    peak: int


def watch(kill: int, script: str, arguments: list[str]) -> Seen:
    """Runs a script in this process, as `python script.py arguments` would."""
    gradients, weights, forwards = [], torch.zeros(0), []

    def before_forward(module: nn.Module, _: Any) -> None:
        outermost = forwards[0] if forwards else module  # it is called first
        if module is outermost and torch.is_grad_enabled():
            forwards.append(module)
            if len(forwards) == kill:
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    def before_step(optimizer: Optimizer, *_: Any) -> None:
        gradients.append(_flat(torch.zeros_like(p) if p.grad is None else p.grad for p in _parameters(optimizer)))

    def after_step(optimizer: Optimizer, *_: Any) -> None:
        nonlocal weights
        weights = _flat(_parameters(optimizer))

    torch.set_grad_enabled(True)  # which the run before may have left otherwise
    torch.set_default_dtype(torch.float32)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    hooks = [
        register_module_forward_pre_hook(before_forward),
        register_optimizer_step_pre_hook(before_step),
        register_optimizer_step_post_hook(after_step),
    ]
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    print(shlex.join(["python", *sys.argv]))
    with saved_bytes(nn.Module()) as saved:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
    for hook in hooks:
        hook.remove()
    return Seen(torch.stack(gradients) if gradients else torch.zeros(0, 0), weights, saved.peak)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


if __name__ == "__main__":
    file, kill, script, runs = sys.argv[1:]
    seen = [tuple(watch(int(kill), script, arguments)) for arguments in json.loads(runs)]
    torch.save(seen, file + os.environ.get("RANK", "0"))
