"""Runs a training script, unchanged, and writes what its optimizer and its model did.

`python -m course_utils.project.watch FILE KILL script.py [args]`: FILE gets the gradient that each step read, the
weights at the end, the number of forward passes in training, and the most bytes that were kept for backward at any
time. With KILL above 0 the process kills itself at the beginning of that forward pass, as a power cut would. Each rank
writes a file of its own.
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course_utils.memory import saved_bytes


class Watch:
    """What is seen of a script.

    Args:
        kill: The forward pass at whose beginning the process ends; 0 means never.
    """

    def __init__(self, kill: int = 0):
        self.kill, self.forwards, self._root = kill, 0, None
        self.gradients: list[Tensor] = []
        self.weights = torch.zeros(0)

    def before_forward(self, module: nn.Module, inputs: Any) -> None:
        if self._root is None:
            self._root = module  # the outermost is called first
        if module is self._root and torch.is_grad_enabled():
            self.forwards += 1
            if self.forwards == self.kill:
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in _parameters(optimizer)]
        self.gradients.append(torch.cat([grad.detach().flatten() for grad in grads]))

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.weights = torch.cat([p.detach().flatten() for p in _parameters(optimizer)])


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def file_of(file: Path, rank: int) -> Path:
    """Where a rank writes."""
    return file.with_stem(f"{file.stem}-rank{rank}")


def main(file: str, kill: str, script: str, *arguments: str) -> None:
    watch, path = Watch(int(kill)), file_of(Path(file).absolute(), int(os.environ.get("RANK", 0)))
    register_optimizer_step_pre_hook(watch.before_step)
    register_optimizer_step_post_hook(watch.after_step)
    nn.modules.module.register_module_forward_pre_hook(watch.before_forward)
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    with saved_bytes(nn.Module()) as saved:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
    gradients = torch.stack(watch.gradients) if watch.gradients else torch.zeros(0, 0)
    seen = {"gradients": gradients, "weights": watch.weights, "forwards": watch.forwards, "peak": saved.peak}
    torch.save(seen, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
