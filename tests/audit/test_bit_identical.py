"""Training comes out the same with and without the auditor, bit for bit: weights, optimizers, losses, random numbers.

Each scenario trains and returns all that it has made. What PyTorch compiles, it compiles into the same graphs.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.autograd import forward_ad
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adam, AdamW, SparseAdam, lr_scheduler
from torch.utils.checkpoint import checkpoint

import exhaustive
from course_utils.record import record
from gradaudit import audit
from runs import bits, update

pytestmark = pytest.mark.filterwarnings("ignore")
SCENARIOS: dict[str, Callable] = {}


def scenario(function: Callable) -> Callable:
    SCENARIOS[function.__name__] = function
    return function


def net(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), *extra, nn.Linear(5, 2))


def batches(count: int = 8) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(4, 3), torch.randint(2, (4,))) for _ in range(count)]


def train(model, optimizer, loss_of=F.cross_entropy, before_step=lambda: None, after_step=lambda: None) -> list:
    """Four updates of two micro-batches. Returns everything."""
    losses = []
    for k, (x, y) in enumerate(batches()):
        loss = loss_of(model(x), y) / 2
        loss.backward()
        losses.append(loss)
        if k % 2:
            before_step()
            optimizer.step()
            optimizer.zero_grad()
            after_step()
    return [model, optimizer, losses]


# Optimizers


@scenario
def sparse_gradients():
    words = nn.Embedding(10, 3, sparse=True)
    optimizer = SparseAdam(words.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(2):
            words(torch.randint(10, (5,))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return words, optimizer


@scenario
def an_optimizer_inside_the_backward():
    model = net()
    optimizers = {p: SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: update(optimizers[p]))
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
    return model, list(optimizers.values())


# Precision and clipping


@scenario
def complex_parameters():
    w = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    optimizer = Adam([w], lr=0.1)
    for x, _ in batches():
        (x.to(torch.complex64) @ w).abs().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return w, optimizer


# Autograd


@scenario
def checkpoints_of_both_kinds():
    def run(reentrant):
        body, head = net(nn.Dropout(0.5)), nn.Linear(2, 2)
        optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for x, y in batches(4):
            x.requires_grad_()
            F.cross_entropy(head(checkpoint(body, x, use_reentrant=reentrant)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return body, head, optimizer

    return run(True), run(False)


@scenario
def per_sample_gradients_by_torch_func():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    for x, y in batches():
        parameters = dict(model.named_parameters())
        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        for name, p in parameters.items():
            p.grad = each[name].clamp(-0.1, 0.1).mean(0)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@scenario
def forward_mode_and_inference_mode_in_between():
    model, said = net(), []
    optimizer = SGD(model.parameters(), lr=0.1)

    def look():
        with torch.inference_mode():
            said.append(model(torch.randn(4, 3)).clone())
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.randn(4, 3), torch.randn(4, 3))
            said.append(forward_ad.unpack_dual(model(dual)).tangent.detach())

    return said, train(model, optimizer, after_step=look)


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
    return seen, train(model, optimizer)


@scenario
def hooks_on_the_loss_and_on_its_graph():
    def loss(scores, y):
        mean = F.cross_entropy(scores, y)
        mean.register_hook(lambda g: g * 0.5)
        mean.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
        return mean

    model = net()
    return train(model, SGD(model.parameters(), lr=0.1), loss)


@scenario
def saved_tensors_that_are_packed():
    model = net()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
        lossy = train(model, SGD(model.parameters(), lr=0.1), lambda scores, y: scores.square().mean())
    with torch.autograd.graph.save_on_cpu():
        return lossy, train(model, SGD(model.parameters(), lr=0.1))


# Models


@scenario
def dropout_and_batchnorm():
    model = net(nn.BatchNorm1d(5), nn.Dropout(0.5))
    return train(model, AdamW(model.parameters(), lr=0.1))


# Compiled, without the last stage of the default backend, which takes long. "aot_eager" also traces the backward pass.


def compiled(function: Callable | None = None, backend: str = "eager", fullgraph: bool = True) -> Callable:
    return torch.compile(function, backend=backend, fullgraph=fullgraph)


@scenario
def compiled_model_and_loss():
    whole = compiled(lambda x, y: F.cross_entropy(model(x), y), backend="aot_eager")
    model = net()
    return train(lambda x: x, SGD(model.parameters(), lr=0.1), whole), model


@scenario
def compiled_clipping_in_one_graph():
    model = net()
    parameters = list(model.parameters())
    by_norm = compiled(lambda: clip_grad_norm_(parameters, 0.1))
    by_value = compiled(lambda: clip_grad_value_(parameters, 0.01))
    return train(model, SGD(parameters, lr=0.1), before_step=lambda: (by_norm(), by_value()))


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

    for x, y in batches(3):
        step(x, y)
    return model, optimizer


@scenario
def compiled_autograd():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with torch._dynamo.compiled_autograd._enable(compiled(fullgraph=False)):
        for x, y in batches(3):
            (F.cross_entropy(model(x), y) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


# The test


def outcome(run: Callable, watched: Callable) -> tuple:
    """What comes out, how random numbers go on, Dynamo's graphs and their breaks; the warnings; the report."""
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
    if "compiled" in name:  # an update inside compiled code is no step that the auditor sees
        assert report.errors == []


def test_recording_changes_nothing_either():
    run = SCENARIOS["dropout_and_batchnorm"]
    assert outcome(run, record)[0] == outcome(run, nullcontext)[0]
