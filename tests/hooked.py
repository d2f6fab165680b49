"""What is hooked or patched: the same before and after, or something was left behind."""

import signal
import sys

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.modules import module as modules
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizers
from torch.utils.data.dataloader import _BaseDataLoaderIter

PATCHED = [
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.distributed, "all_reduce"),
    (optimizers.Optimizer, "zero_grad"),
    (optimizers.Optimizer, "add_param_group"),
    (nn.Module, "zero_grad"),
    (nn.Module, "__setstate__"),
    (nn.utils, "clip_grad_value_"),
    (nn.utils, "clip_grads_with_norm_"),
    (clip_grad, "_clip_grads_with_norm_"),
    (clip_grad, "clip_grad_value_"),
    (DistributedDataParallel, "forward"),
    (_BaseDataLoaderIter, "__next__"),
    (_BatchNorm, "__init__"),
    (lr_scheduler.LRScheduler, "__init__"),
    *((GradScaler, name) for name in ("scale", "unscale_", "step", "update")),
    *((kind, "step") for kind in vars(lr_scheduler).values() if isinstance(kind, type) and "step" in vars(kind)),
]


def hooks() -> list:
    """Everything that is hooked or patched, or switched, while a loop is watched or runs."""
    return [
        *(vars(owner)[name] for owner, name in PATCHED),
        *map(len, (modules._global_forward_pre_hooks, modules._global_forward_hooks, modules._global_backward_hooks)),
        *map(len, (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)),
        sys.excepthook,
        signal.getsignal(signal.SIGINT),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
    ]
