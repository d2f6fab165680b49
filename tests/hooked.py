"""What is hooked, patched or switched while a loop is watched: the same before and after, or something was left."""

import signal
import sys

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from runs import attached


def hooks() -> list:
    return [
        attached(),
        torch.distributed.all_reduce,
        _BaseDataLoaderIter.__next__,
        sys.excepthook,
        signal.getsignal(signal.SIGINT),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
    ]
