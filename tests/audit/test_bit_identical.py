"""Training is the same with and without the auditor, bit for bit, random numbers included.

Each scenario trains and returns all that it has made. What PyTorch compiles, it compiles into the
same graphs.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.autograd import forward_ad
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adam, SparseAdam, lr_scheduler
from torch.utils.checkpoint import checkpoint

import exhaustive
from gradaudit import audit
from runs import bits, data, update

pytestmark = pytest.mark.filterwarnings("ignore")
SCENARIOS: dict[str, Callable] = {}


def scenario(function: Callable) -> Callable:
    SCENARIOS[function.__name__] = function
    return function


def net(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), *extra, nn.Linear(5, 2))


def train(model, loss_of=F.cross_entropy, before_step=lambda: None, optimizer=None) -> list:
    """Four updates of two micro-batches. Returns everything."""
    optimizer, losses = optimizer or SGD(model.parameters(), lr=0.1), []
    for k, (x, y) in enumerate(data()):
        loss = loss_of(model(x), y) / 2
        loss.backward()
        losses.append(loss)
        if k % 2:
            before_step()
            update(optimizer)
    return [model, optimizer, losses]


def mean_square(out, _):
    return out.square().mean()


@scenario
def sparse_gradients():
    words = nn.Embedding(10, 3, sparse=True)
    model = nn.Sequential(words)
    model.register_forward_pre_hook(lambda _, inputs: inputs[0].abs().long())
    return train(model, mean_square, optimizer=SparseAdam(words.parameters(), lr=0.1))


@scenario
def complex_parameters():
    w = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    return train(lambda x: (x.to(torch.complex64) @ w).abs(), mean_square, optimizer=Adam([w], lr=0.1))[1:], w


@scenario
def checkpoints_of_both_kinds():
    def run(reentrant):
        body, head = net(nn.BatchNorm1d(5), nn.Dropout(0.5)), nn.Linear(2, 2)
        optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for x, y in data(4):
            F.cross_entropy(head(checkpoint(body, x.requires_grad_(), use_reentrant=reentrant)), y).backward()
            update(optimizer)
        return body, head, optimizer

    return run(True), run(False)


@scenario
def per_sample_gradients_by_torch_func():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    for x, y in data():
        parameters = dict(model.named_parameters())
        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        for name, p in parameters.items():
            p.grad = each[name].clamp(-0.1, 0.1).mean(0)
        update(optimizer)
    return model, optimizer


@scenario
def forward_mode_and_inference_mode_in_between():
    model, said = net(), []

    def look():
        with torch.inference_mode():
            said.append(model(torch.randn(4, 3)).clone())
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.randn(4, 3), torch.randn(4, 3))
            said.append(forward_ad.unpack_dual(model(dual)).tangent.detach())

    return said, train(model, before_step=look)


@scenario
def hooks_of_the_users_own():
    model, seen = net(), []
    for p in model.parameters():
        p.register_hook(lambda g: g * 1.5)
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    model[0].register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].clone()))
    model[2].register_forward_hook(lambda module, inputs, output: output * 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in model.parameters()]))

    def loss(scores, y):
        mean = F.cross_entropy(scores, y)
        mean.register_hook(lambda g: g * 0.5)
        mean.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
        return mean

    return seen, train(model, loss, optimizer=optimizer)


@scenario
def saved_tensors_that_are_packed():
    model = net()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
        lossy = train(model, mean_square)
    with torch.autograd.graph.save_on_cpu():
        return lossy, train(model)


# Compiled without the last stage of the default backend, which takes long. "aot_eager" also traces
# the backward pass.


def compiled(function: Callable | None = None, backend: str = "eager", fullgraph: bool = True) -> Callable:
    return torch.compile(function, backend=backend, fullgraph=fullgraph)


@scenario
def compiled_model_and_loss():
    whole = compiled(lambda x, y: F.cross_entropy(model(x), y), backend="aot_eager")
    model = net()
    return train(lambda x: x, whole, optimizer=SGD(model.parameters(), lr=0.1)), model


@scenario
def compiled_clipping_in_one_graph():
    model = net()
    parameters = list(model.parameters())
    by_norm = compiled(lambda: clip_grad_norm_(parameters, 0.1))
    by_value = compiled(lambda: clip_grad_value_(parameters, 0.01))
    return train(model, before_step=lambda: (by_norm(), by_value()))


@scenario
def a_compiled_training_step_with_a_scaler():
    model = net()
    optimizer, scaler = SGD(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=8.0)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)

    @compiled(fullgraph=False)
    def step(x, y):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    for x, y in data(3):
        step(x, y)
    return model, optimizer


@scenario
def compiled_autograd():
    with torch._dynamo.compiled_autograd._enable(compiled(fullgraph=False)):
        return train(net())


# The test


def outcome(run: Callable, watched: Callable) -> tuple:
    """What comes out, random numbers, Dynamo's graphs and breaks; the warnings; the report."""
    torch.manual_seed(0)
    if torch._dynamo.utils.counters:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with watched() as report:
            made = run()
    counted = torch._dynamo.utils.counters
    graphs = list(counted["graph_break"].values()), counted["stats"]["unique_graphs"]
    return (bits(made), torch.rand(1).item(), graphs), {str(one.message) for one in warned}, report


@pytest.mark.parametrize("name", exhaustive.mark(SCENARIOS, but=list(SCENARIOS)[:-2]))
def test_training_is_the_same_bit_for_bit(name):
    plain, warned, _ = outcome(SCENARIOS[name], nullcontext)
    audited, warned_again, report = outcome(SCENARIOS[name], audit)
    assert audited == plain
    assert warned_again <= warned  # some are given only once
    assert report.errors == []
