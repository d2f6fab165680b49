"""Ways to break PyTorch, for the tests that see a claim's cell fail when the claim is false.

Each is a context manager under the name by which a fact of data/facts calls it (`falsifier.breakage`).
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

BREAKAGES: dict[str, Callable] = {}


def breakage(name: str):
    def keep(function):
        BREAKAGES[name] = function
        return function

    return keep


def patched(owner: object, name: str, around: Callable) -> AbstractContextManager:
    """`owner.name` is replaced by `around(original)` while the block runs."""
    original = getattr(owner, name)
    return patch.object(owner, name, functools.wraps(original)(around(original)))


@contextmanager
def zero_grad_becomes(around: Callable) -> Iterator[None]:
    with patched(Optimizer, "zero_grad", around), patched(nn.Module, "zero_grad", around):
        yield


BREAKAGES["torch: zero_grad does nothing"] = lambda: zero_grad_becomes(
    lambda original: lambda self, set_to_none=True: None
)
BREAKAGES["torch: zero_grad writes zeros"] = lambda: zero_grad_becomes(
    lambda original: lambda self, set_to_none=False: original(self, False)
)
BREAKAGES["torch: zero_grad always sets None"] = lambda: zero_grad_becomes(
    lambda original: lambda self, set_to_none=True: original(self, True)
)


@breakage("torch: zero_grad also zeroes the weights")
@contextmanager
def _():
    def around(original):
        def zero_grad(self, set_to_none=True):
            original(self, set_to_none)
            groups = [{"params": self.parameters()}] if isinstance(self, nn.Module) else self.param_groups
            with torch.no_grad():
                for group in groups:
                    for p in group["params"]:
                        p.zero_()

        return zero_grad

    with zero_grad_becomes(around):
        yield


def leaves(root) -> list[Tensor]:
    """The leaves that a backward from `root` would reach."""
    found, seen, todo = [], set(), [root.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [following for following, _ in node.next_functions]
    return found


@contextmanager
def backward_combines(combine: Callable[[Tensor | None, Tensor], Tensor]) -> Iterator[None]:
    """backward() stores `combine(old .grad, new gradient)` instead of their sum."""

    def around(original):
        def backward(tensors, *args, **kwargs):
            roots = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
            reached = list({id(p): p for root in roots for p in leaves(root)}.values())
            old = [p.grad for p in reached]
            for p in reached:
                p.grad = None
            original(tensors, *args, **kwargs)
            for p, before in zip(reached, old, strict=True):
                p.grad = combine(before, p.grad) if p.grad is not None else before

        return backward

    with patched(torch.autograd, "backward", around):
        yield


BREAKAGES["torch: backward replaces .grad"] = lambda: backward_combines(lambda old, new: new)
BREAKAGES["torch: backward adds with the wrong sign"] = lambda: backward_combines(
    lambda old, new: -new if old is None else old - new
)
BREAKAGES["torch: backward makes a new .grad tensor"] = lambda: backward_combines(
    lambda old, new: new if old is None else old + new
)


@breakage("torch: backward keeps its graph")
@contextmanager
def _():
    def around(original):
        def backward(tensors, grad_tensors=None, retain_graph=None, *args, **kwargs):  # given by place
            return original(tensors, grad_tensors, True, *args, **kwargs)

        return backward

    with patched(torch.autograd, "backward", around):
        yield


@contextmanager
def hooked(handle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def each_parameter(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


@breakage("torch: step clears .grad")
def _():
    def clear(optimizer, *_):
        for p in each_parameter(optimizer):
            p.grad = None

    return hooked(register_optimizer_step_post_hook(clear))


@breakage("torch: step treats None as zeros")
def _():
    def fill(optimizer, *_):
        for p in each_parameter(optimizer):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad

    return hooked(register_optimizer_step_pre_hook(fill))


BREAKAGES["torch: optimizers remember nothing"] = lambda: hooked(
    register_optimizer_step_pre_hook(lambda optimizer, *_: optimizer.state.clear())
)


@breakage("torch: a second step without zeroing warns")
def _():
    import warnings

    stepped = {}

    def warn(optimizer, *_):
        grads = [id(p.grad) for p in each_parameter(optimizer)]
        if stepped.get(id(optimizer)) == grads:
            warnings.warn("step() without zero_grad()", stacklevel=2)
        stepped[id(optimizer)] = grads

    return hooked(register_optimizer_step_pre_hook(warn))


@breakage("torch: parameters begin with zero gradients")
def _():
    def around(original):
        def new(cls, *args, **kwargs):
            parameter = original(cls, *args, **kwargs)
            parameter.grad = torch.zeros_like(parameter)
            return parameter

        return new

    return patched(nn.Parameter, "__new__", around)


@breakage("torch: autograd.grad also fills .grad")
def _():
    def around(original):
        def grad(outputs, inputs, *args, **kwargs):
            gradients = original(outputs, inputs, *args, **kwargs)
            for tensor, gradient in zip(inputs, gradients, strict=False):
                if isinstance(tensor, nn.Parameter):
                    tensor.grad = gradient
            return gradients

        return grad

    return patched(torch.autograd, "grad", around)


@breakage("torch: clip_grad_norm_ changes nothing")
def _():
    from torch.nn import utils

    def around(original):
        return lambda parameters, *args, **kwargs: utils.get_total_norm([p.grad for p in parameters])

    return patched(utils, "clip_grad_norm_", around)


@breakage("torch: zero_grad clears every parameter there is")
@contextmanager
def _():
    import gc

    def around(original):
        def zero_grad(self, set_to_none=True):
            original(self, set_to_none)
            for thing in gc.get_objects():
                if type(thing) is nn.Parameter:
                    thing.grad = None

        return zero_grad

    with zero_grad_becomes(around):
        yield


BREAKAGES["torch: backward adds magnitudes"] = lambda: backward_combines(
    lambda old, new: new.abs() if old is None else old + new.abs()
)


def batch_norm_becomes(around: Callable) -> AbstractContextManager:
    return patched(torch.nn.modules.batchnorm._BatchNorm, "forward", around)


@breakage("torch: BatchNorm normalises by its running statistics")
def _():
    def around(original):
        def forward(self, x):
            training, self.training = self.training, False
            try:
                return original(self, x)
            finally:
                self.training = training

        return forward

    return batch_norm_becomes(around)


@breakage("torch: BatchNorm tracks only its first forward")
def _():
    def around(original):
        def forward(self, x):
            before = {name: buffer.clone() for name, buffer in self.named_buffers()}
            y = original(self, x)
            if before["num_batches_tracked"] > 0:
                for name, buffer in self.named_buffers():
                    buffer.copy_(before[name])
            return y

        return forward

    return batch_norm_becomes(around)


BREAKAGES["torch: dropout lets everything through"] = lambda: patched(
    nn.functional, "dropout", lambda original: lambda x, *args, **kwargs: x
)


@breakage("torch: a weighted cross_entropy is divided by items")
def _():
    def around(original):
        def cross_entropy(logits, target, weight=None, *args, **kwargs):
            return original(logits, target, weight, reduction="sum") / len(target)

        return cross_entropy

    return patched(nn.functional, "cross_entropy", around)


def cross_entropy_becomes(mean: Callable[[Tensor, Tensor], Tensor]):
    """Where the mean is asked for, cross_entropy gives `mean(sum of the losses, targets)`."""

    def around(original):
        def cross_entropy(scores, targets, *args, reduction="mean", **kwargs):
            if reduction != "mean":
                return original(scores, targets, *args, reduction=reduction, **kwargs)
            return mean(original(scores, targets, *args, reduction="sum", **kwargs), targets)

        return cross_entropy

    return patched(nn.functional, "cross_entropy", around)


BREAKAGES["torch: cross_entropy of no valid target is 0"] = lambda: cross_entropy_becomes(
    lambda total, targets: total / (targets != -100).sum().clamp(min=1)
)
BREAKAGES["torch: cross_entropy averages over ignored targets too"] = lambda: cross_entropy_becomes(
    lambda total, targets: total / targets.numel()
)


@breakage("torch: the old AMP names are the new ones")
@contextmanager
def _():
    def scaler(original):
        return lambda **options: torch.amp.GradScaler("cuda", **options)

    def autocast(original):
        return lambda **options: torch.amp.autocast("cuda", **options)

    with patched(torch.cuda.amp, "GradScaler", scaler), patched(torch.cuda.amp, "autocast", autocast):
        yield


BREAKAGES["torch: OutOfMemoryError is a plain Exception"] = lambda: patch.object(
    torch, "OutOfMemoryError", type("OutOfMemoryError", (Exception,), {})
)


@breakage("torch: a checkpoint keeps everything")
def _():
    def around(original):
        return lambda function, *args, use_reentrant=None, **options: function(*args)

    return patched(torch.utils.checkpoint, "checkpoint", around)
