"""What is hard to see: nested steps, closures, optimizers that die, wrappers, shards."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam, Optimizer

from course_utils import record
from gradaudit import audit
from gradaudit.observe import gradients
from gradaudit.observe.observer import Listener, Observer

X = torch.ones(3, 2)


@pytest.fixture
def model():
    return nn.Linear(2, 1)


def train(model, optimizer, updates=3):
    for _ in range(updates):
        model(X).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Wrapper(Optimizer):
    """As Accelerate's: an optimizer by its class, which holds another and lets it do the work."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups, self.defaults = inner.param_groups, inner.defaults

    def step(self, closure=None):
        return self.inner.step(closure)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


class StepsTwice(SGD):
    def step(self, closure=None):
        super().step(closure)
        return super().step()


def test_an_optimizer_that_was_dropped_is_not_kept_alive_and_owns_no_lane(model):
    with record() as trace:
        dropped = SGD(model.parameters(), lr=0.1)
        dead = weakref.ref(dropped)
        model(X)
        del dropped
        gc.collect()
        assert dead() is None
        train(model, SGD(model.parameters(), lr=0.1))
    assert trace.updates() == [1, 1, 1]
    assert trace.updates("SGD") == [1, 1, 1]


def test_an_optimizer_at_the_address_of_a_dead_one_has_a_ledger_of_its_own(model):
    optimizer, other = SGD(model.parameters(), lr=0.1), SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    observer, ended = Observer(Listener()), []
    ledger = observer.ledger_of(optimizer)
    observer.listener.ended = ended.append
    observer.ledgers = {id(other): ledger}  # as if the first one had died and the second one lay where it was
    assert observer.ledger_of(other) is not ledger
    assert observer.ledgers[id(other)].gradients.parameters == other.param_groups[0]["params"]
    assert ended == [ledger]


@pytest.mark.parametrize("collected", [False, True])
def test_optimizers_come_in_the_order_in_which_they_were_made_whenever_garbage_was_collected(collected):
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    first = SGD(layers[0].parameters(), lr=0.1)
    if collected:
        gc.collect(1)
    second = Adam(layers[1].parameters())
    with record() as trace:
        layers(X).mean().backward()
    assert trace.lanes == ["SGD", "Adam"]
    del first, second


def test_a_wrapper_that_a_scaler_is_given_has_no_lane_either(model):
    optimizer, scaler = Wrapper(Adam(model.parameters())), GradScaler("cpu", init_scale=4.0)
    with audit() as report:
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(model(X).mean() * factor).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [each.name for each in report.history.ledgers] == ["Adam"]


@pytest.mark.parametrize("optimizer_class", [SGD, StepsTwice])
def test_a_step_uses_the_backward_calls_of_its_closure_and_is_one_whatever_it_calls(model, optimizer_class):
    def closure():
        model.zero_grad()
        loss = model(X).mean()
        loss.backward()
        return loss

    SGD([torch.zeros(1)], lr=0.1)
    with record() as trace:
        optimizer = optimizer_class(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.step(closure)
    assert str(trace).split("  ")[1] == "b S z b S z b S"
    assert trace.updates() == [1, 1, 1]
    assert all(event.norm > 0 for event in trace.events if event.kind == "step")


def test_an_optimizer_that_steps_and_zeroes_inside_a_backward_call_is_recorded(model):
    optimizer = SGD([model.weight], lr=0.1)
    model.weight.register_post_accumulate_grad_hook(lambda _: (optimizer.step(), optimizer.zero_grad())[1])
    with record() as trace, audit() as report:
        for _ in range(3):
            model(X).mean().backward()
    assert trace.updates("SGD") == [1, 1, 1]
    assert str(trace).splitlines()[0].split() == ["SGD", *"bSzbSzbSz"]
    assert report.errors == []


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("zeroed", [False, True])
def test_calls_are_used_by_the_update_that_is_made_and_not_by_one_that_a_scaler_skipped(model, zeroed, fused):
    optimizer, scaler = SGD(model.parameters(), lr=0.1, fused=fused), torch.amp.GradScaler("cpu")
    with record() as trace:
        for factor in (1.0, float("inf")):
            scaler.scale(model(X).mean() * factor).backward()
        scaler.step(optimizer)
        skipped = list(trace.ledgers["SGD"].in_grad)
        assert trace.leftover() == 2
        if zeroed:
            optimizer.zero_grad()
        model(X).mean().backward()
        optimizer.step()
    made = trace.ledgers["SGD"].updates[-1]
    assert [call.used_by for call in made.calls] == [[made]] * (1 if zeroed else 3)
    assert [call.used_by for call in skipped] == [[] if zeroed else [made]] * 2
    assert (trace.updates(), trace.leftover()) == ([1 if zeroed else 3], 0)


def test_the_norm_of_a_step_is_without_the_scalers_factor(model):
    optimizer, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with record() as trace:
        scaler.scale(model(X).sum()).backward()  # every gradient is 3
        scaler.step(optimizer)
    assert [event.kind for event in trace.events] == ["backward", "change", "step"]
    assert [event.norm for event in trace.events] == pytest.approx([1024 * 27**0.5, 27**0.5, 27**0.5])


@pytest.mark.parametrize("masked", [[0], [0, 1]])
def test_a_micro_batch_that_brings_nothing_but_zeros_is_no_zeroing(model, masked):
    optimizer = SGD(model.parameters(), lr=0.1)
    with record() as trace, audit() as report:
        for k in range(3):
            (model(X) * (0 if k in masked else 1)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert trace.updates() == [update.held for update in report.history.updates] == [3]
    assert "z" not in str(trace).split("S z")[0]
    assert not report.history.ledgers[0].lost


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_model_may_be_converted_by_swapping_its_tensors(model, monkeypatch):
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record() as trace:
        model(X).sum().backward()
        model.double()
        optimizer.step()
    assert str(trace).replace(" c", "") == "SGD  b S"


def test_a_gradient_that_lies_where_a_freed_one_lay_is_a_new_one(model):
    found = gradients.Gradients()
    found.add(model.weight)
    for _ in range(50):
        model.weight.grad = None
        model.weight.grad = torch.ones(1, 2)
        assert found.compare()


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("zero", [True, False])
def test_sharded_parameters_are_seen(model, process_group, zero):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record() as trace, audit() as report:
        for _ in range(2):
            for _ in range(2):
                model(X).sum().backward()
            optimizer.step()
            if zero:
                optimizer.zero_grad(set_to_none=False)
    assert str(trace) == ("SGD  b b S z b b S z" if zero else "SGD  b b S b b S")
    assert trace.updates() == [update.held for update in report.history.updates] == [2, 2 if zero else 4]
    held = [1, 2, 1, 2] if zero else [1, 2, 3, 4]
    norms = [event.norm for event in trace.events if event.kind == "backward"]
    assert norms == pytest.approx([27**0.5 * count for count in held])


def test_zeroing_without_a_version_inside_windows_is_seen_if_it_begins_in_the_first_of_them():
    w = torch.ones(2, requires_grad=True)
    optimizer = SGD([w], lr=0.1)
    with record() as trace:
        for window in range(60):
            w.sum().backward()
            if window >= 10:
                w.grad.data.zero_()
            w.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert trace.updates() == [2] * 10 + [1] * 50


class ClipsItself(SGD):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


def test_clipping_belongs_to_the_script_unless_the_optimizers_own_step_does_it(model):
    def clips(cls, by_the_script):
        optimizer = cls(model.parameters(), lr=0.1)
        with audit() as report:
            for _ in range(3):
                model(X).mean().backward()
                if by_the_script:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return [len(window.clips) for window in report.history.updates]

    assert clips(SGD, by_the_script=True) == [1, 1, 1]
    assert clips(SGD, by_the_script=False) == clips(ClipsItself, by_the_script=False) == [0, 0, 0]


@pytest.mark.parametrize(("stays", "windows"), [(True, [1, 2]), (False, [1, 1])])
def test_what_is_held_is_forgotten_only_with_the_last_gradient_that_is_taken_out_of_the_optimizer(stays, windows):
    a, b, c = (nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizer = SGD([a, b], lr=0.1)
    with record() as trace, audit() as report:
        (a * b).backward()
        optimizer.step()
        optimizer.zero_grad()
        (a * b).backward()
        optimizer.param_groups[0]["params"] = [a] if stays else [c]
        (a * c).backward()
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
        optimizer.step()
    assert trace.updates() == [len(window.fresh) for window in report.history.updates] == windows
    assert [clip.after for clip in report.history.updates[1].clips] == windows[1:]


@pytest.fixture
def read(monkeypatch):
    """The gradients whose values the observer has read."""
    read, any_nonzero = [], gradients.any_nonzero
    monkeypatch.setattr(gradients, "any_nonzero", lambda grad: read.append(grad) or any_nonzero(grad))
    return read


def test_zeroing_one_optimizer_reads_no_gradients_of_another(model, read):
    other = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record():
        train(model, optimizer)
        model(X).mean().backward()
        read.clear()
        other.zero_grad()
        assert not read  # on a GPU it would wait for each of them
        optimizer.step()
        assert read


class Elsewhere(torch.Tensor):
    """Stands for a tensor on another device, where a gradient is read in other ways."""

    is_cpu = False


@pytest.mark.parametrize("of", [torch.Tensor, Elsewhere])
def test_a_gradient_of_any_shape_holds_a_number_other_than_zero_or_none(of):
    for shape in ((), (0, 3), (3,), (2, 3), (3, 5_000)):
        grad = torch.zeros(shape)
        assert not gradients.any_nonzero(grad.as_subclass(of))
        for index in (0, -1) if grad.numel() else ():
            grad.flatten()[index] = 1.0
            assert gradients.any_nonzero(grad.as_subclass(of))
            grad.zero_()


@pytest.mark.parametrize(("of", "reads"), [(torch.Tensor, 1), (Elsewhere, 0)])
def test_what_a_backward_call_brings_is_read_on_the_cpu_alone(of, reads, read):
    w = nn.Parameter(torch.ones(2))
    w.grad = torch.zeros(2).as_subclass(of)  # a backward call adds to it
    optimizer = SGD([w], lr=0.1)
    with record() as trace:
        read.clear()
        w.sum().backward()
        assert len(read) == reads
        optimizer.step()
    assert trace.updates() == [1]
