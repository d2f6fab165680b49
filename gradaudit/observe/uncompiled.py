"""Keeps Dynamo, the front end of `torch.compile`, out of the observer, so that scripts compile as they do without it.

Dynamo meets the observer in two ways. It traces a patched function, as a part of the user's: then it must find the
original there (`torch.compiler.is_dynamo_compiling()`). Or a patched function runs after a graph break, between two
compiled pieces of the user's: then Dynamo would compile the observer, too.
"""

import sys
from types import FunctionType

import torch


def backward_is_compiled() -> bool:
    """Whether compiled autograd is on, which would compile hooks on a graph with the graph.

    >>> backward_is_compiled()
    False
    """
    return getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False)


def leave_uncompiled(function: FunctionType, calls: bool = False) -> None:
    """Lets a function run as it stands, also where compiled code calls it.

    Args:
        function: One written in Python; it shares this with all that are made by the same line.
        calls: Whether all that it calls is left uncompiled, too.

    Example:
        >>> leave_uncompiled(lambda: None)
    """
    frames = torch._C._dynamo.eval_frame
    action = frames._FrameAction
    below = action.SKIP if calls else action.DEFAULT
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, below))
