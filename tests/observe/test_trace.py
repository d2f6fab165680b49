"""record(): every backward call, change, step and zeroing is seen, and nothing is changed."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from course_utils import record

X = torch.ones(3, 2)


@pytest.fixture
def model():
    return nn.Linear(2, 1)


@pytest.fixture
def optimizer(model):
    return SGD(model.parameters(), lr=0.1)


def story(trace, lane=None):
    """The events of a lane in letters: b backward, c change, S step, z zero."""
    letters = {"backward": "b", "change": "c", "step": "S", "zero": "z"}
    return "".join(letters[event.kind] for event in trace.on(lane))


def norms(trace, kind):
    return [event.norm for event in trace.events if event.kind == kind]


# Loops, their events and windows. Other styles of zeroing are in test_random_programs.py.


def backward(model, factor=1.0):
    (model(X) * factor).sum().backward()


def after_backward(does, factor=1.0):
    """A loop that does something between a backward call and its step, and something after it."""

    def loop(model, optimizer):
        backward(model, factor)
        does(model)
        optimizer.step()

    return loop


def zeroed_twice(zero):
    def loop(model, optimizer):
        backward(model)
        zero(model)
        backward(model)
        optimizer.step()
        zero(model)

    return loop


def for_each(do):
    return lambda model: [do(p) for p in model.parameters()]


def windows(model, optimizer):
    for size in (4, 2):
        for _ in range(size):
            backward(model)
        optimizer.step()
        optimizer.zero_grad()


def only_zeros(model, optimizer):
    backward(model, 0.0)
    optimizer.step()
    optimizer.zero_grad()


LOOPS = {
    "windows": (windows, "bbbbSzbbSz", [4, 2]),
    "model.zero_grad()": (zeroed_twice(lambda model: model.zero_grad()), "bzbSz", [1]),
    "foreach": (zeroed_twice(lambda model: torch._foreach_zero_([p.grad for p in model.parameters()])), "bzbSz", [1]),
    "times zero": (zeroed_twice(for_each(lambda p: p.grad.mul_(0))), "bzbSz", [1]),
    "del": (zeroed_twice(for_each(lambda p: delattr(p, "grad"))), "bzbSz", [1]),
    "only zeros": (only_zeros, "bSz", [0]),
    "a part is zeroed": (after_backward(lambda model: setattr(model.weight, "grad", None)), "bcS", [1]),
    "clipped": (after_backward(lambda model: nn.utils.clip_grad_norm_([model.weight], 0.01)), "bcS", [1]),
    "through .data": (after_backward(lambda model: model.weight.grad.data.mul_(0.5)), "bcS", [1]),
    "assigned": (after_backward(lambda model: setattr(model.bias, "grad", torch.full((1,), 5.0))), "bcS", [1]),
    "NaN": (after_backward(lambda model: model(X), float("nan")), "bS", [1]),
    "infinity": (after_backward(lambda model: model(X), float("inf")), "bS", [1]),
}


@pytest.mark.parametrize(("loop", "events", "held"), LOOPS.values(), ids=LOOPS)
def test_the_events_of_a_loop_and_its_windows_are_seen(model, optimizer, loop, events, held):
    with record() as trace:
        loop(model, optimizer)
    assert story(trace) == events
    assert trace.updates() == held
    assert str(trace) == repr(trace) == "SGD  " + " ".join(events)
    assert set(norms(trace, "zero")) <= {0}
    if "c" in events:
        assert norms(trace, "change") == norms(trace, "step") != norms(trace, "backward")


def test_sparse_gradients_are_seen():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record() as trace:
        model(torch.tensor([1, 1, 3])).sum().backward()  # the gradients are 2 twice, and 1 twice
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert story(trace) == "bSz"
    assert norms(trace, "step") == [pytest.approx(10**0.5)]


def test_gradients_from_before_the_block_are_no_micro_batch_but_are_in_the_norm(model, optimizer):
    model(X).sum().backward()
    with record() as trace:
        model(X).sum().backward()
        optimizer.step()
    assert trace.updates() == [1]
    assert norms(trace, "step") == [pytest.approx(108**0.5)]


@pytest.mark.parametrize(("value", "told"), [(-1.0, "z"), (0.0, "")])
def test_gradients_from_before_the_block_that_it_zeroes_are_a_zeroing_unless_they_are_zero(
    model, optimizer, value, told
):
    model.bias.grad = torch.full_like(model.bias, value)
    with record() as trace:
        optimizer.zero_grad()
    assert story(trace) == told


def test_the_norms_of_a_backward_call_and_of_a_step_are_read_together(monkeypatch):
    """Each read would wait for a GPU."""
    parameters = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in 51 * (torch.float32, torch.bfloat16)]
    optimizer, reads = SGD(parameters, lr=0.1), []
    read = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: (reads.append(1), read(tensor))[1])
    with record() as trace:
        for _ in range(8):
            sum(p.float().sum() for p in parameters).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert trace.updates() == [8]
    assert len(reads) <= 8 + 2  # after each backward call, at the step, and at the zeroing
    assert norms(trace, "step") == [pytest.approx(8 * (3 * 102) ** 0.5, rel=0.01)]


def test_gradients_from_elsewhere_are_no_micro_batches(model, optimizer):
    with record() as trace:
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        for p, gradient in zip(
            model.parameters(), torch.autograd.grad(model(X).mean(), list(model.parameters())), strict=True
        ):
            p.grad = gradient
        optimizer.step()
    assert trace.updates() == [1, 0]


# Lanes.


def test_a_parameter_that_is_unfrozen_in_the_block_is_seen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = SGD([{"params": model[0].parameters()}], lr=0.1)
    with record() as trace:
        model(X).mean().backward()
        model[0].requires_grad_(True)
        model(X).mean().backward()
        optimizer.step()
    assert story(trace, "SGD") == "bS"
    assert trace.updates("SGD") == [1]


def test_parameters_that_the_block_adds_to_an_optimizer_change_their_lane():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = SGD(model[1].parameters(), lr=0.1)
    with record() as trace:
        model[0](X).mean().backward()
        optimizer.add_param_group({"params": model[0].parameters()})
        model[0](X).mean().backward()
        optimizer.step()
    assert story(trace, "no optimizer") == "b"
    assert story(trace, "SGD") == "bS"


def test_tensors_outside_any_module_are_seen_and_a_norm_that_overflows_is_infinity():
    w = torch.ones(2, requires_grad=True, dtype=torch.float64)
    optimizer = SGD([w], lr=0.1)
    with record() as trace:
        (w * 3).sum().backward()
        torch.autograd.backward((w * 1e200).sum())
        optimizer.step()
    assert story(trace) == "bbS"
    assert norms(trace, "backward") == [pytest.approx(18**0.5), float("inf")]  # squares overflow


def test_an_empty_trace_has_no_lanes_windows_or_leftovers():
    with record() as trace:
        pass
    assert (trace.lanes, trace.updates(), trace.leftover(), str(trace)) == ([], [], 0, "")
    with pytest.raises(ValueError, match=r"no lane 'Adam' in this trace, only \[\]"):
        trace.updates("Adam")


# One event for one call.


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_one_forward_and_one_backward(reentrant):
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record() as trace:
        for _ in range(2):
            x = X.clone().requires_grad_()
            for _ in range(2):  # one layer twice: its weights receive two gradients
                x = checkpoint(model, x, use_reentrant=reentrant)
            x.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert story(trace) == "bbSz"
