"""record(): every forward, backward, change, step and zeroing of any loop is seen, and nothing is changed."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from course_utils import record
from gradaudit.observe.observer import Listener, Observer
from hooked import hooks

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


# Zeroing. Other styles are in test_random_programs.py.


def times_zero(model, optimizer):
    for p in model.parameters():
        p.grad *= 0


def delete(model, optimizer):
    for p in model.parameters():
        del p.grad


ZEROING = {
    "model.zero_grad()": lambda model, optimizer: model.zero_grad(),
    "model.zero_grad(set_to_none=False)": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "foreach": lambda model, optimizer: torch._foreach_zero_([p.grad for p in model.parameters()]),
    "*= 0": times_zero,
    "del": delete,
}


@pytest.mark.parametrize("zero", ZEROING.values(), ids=ZEROING)
def test_zeroing_is_seen_in_every_style(model, optimizer, zero):
    with record() as trace:
        model(X).mean().backward()
        zero(model, optimizer)
        model(X).mean().backward()
        optimizer.step()
        zero(model, optimizer)
    assert story(trace) == "bzbSz"
    assert norms(trace, "zero") == [0, 0]
    assert trace.windows() == [1]


def test_an_optimizer_at_the_address_of_a_dead_one_has_a_lane_of_its_own(model):
    optimizer, other = SGD(model.parameters(), lr=0.1), SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    observer = Observer(Listener())
    lane = observer.record_of(optimizer)
    ended = []
    observer.listener.ended = ended.append
    observer.records = {id(other): lane}  # as if the first one had died and the second one lay where it was
    assert observer.record_of(other) is not lane
    assert observer.records[id(other)].gradients.parameters == other.param_groups[0]["params"]
    assert ended == [lane]


def test_after_a_backward_that_brought_only_zeros_a_step_uses_nothing_and_zeroing_is_seen(model, optimizer):
    with record() as trace:
        for _ in range(2):
            (model(X) * 0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert story(trace) == "bSz" * 2
    assert trace.windows() == [0, 0]


def test_zeroing_a_part_of_a_lane_leaves_the_rest_in_its_norm(model, optimizer):
    with record() as trace:
        model(X).mean().backward()
        model.weight.grad = None
        optimizer.step()
    assert story(trace) == "bcS"
    assert norms(trace, "change") == [model.bias.grad.norm()]
    assert trace.windows() == [1]


@pytest.mark.parametrize(
    "change",
    [
        lambda p: nn.utils.clip_grad_norm_([p], 0.01),
        lambda p: p.grad.data.mul_(0.5),
        lambda p: setattr(p, "grad", torch.full_like(p, 5.0)),
    ],
    ids=["clip_grad_norm_", "data.mul_", "assigned"],
)
def test_a_change_of_gradients_is_seen(model, optimizer, change):
    with record() as trace:
        model(X).mean().backward()
        change(model.weight)
        optimizer.step()
    assert story(trace) == "bcS"
    assert norms(trace, "change") == norms(trace, "step") != norms(trace, "backward")


@pytest.mark.parametrize("size", [1e200, float("inf")])
def test_norms_of_gradients_that_explode_are_no_error(size):
    w = torch.ones(2, requires_grad=True, dtype=torch.float64)
    v = torch.ones(2, requires_grad=True, dtype=torch.float64)
    optimizer = SGD([w, v], lr=0.1)
    with record() as trace:
        ((w + v) * size).sum().backward()
        optimizer.zero_grad()
    assert story(trace) == "bz"
    assert norms(trace, "backward") == [float("inf")]  # squares overflow


def test_gradients_that_stay_nan_are_seen_as_unchanged(model, optimizer):
    with record() as trace:
        (model(X) * float("nan")).sum().backward()
        model(X)
        optimizer.step()
        optimizer.zero_grad()
    assert story(trace) == "bSz"


def test_sparse_gradients_are_seen():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record() as trace:
        model(torch.tensor([1, 1, 3])).sum().backward()  # the gradients are 2 twice, and 1 twice
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert story(trace) == "bSz"
    assert norms(trace, "step") == [pytest.approx(10**0.5)]


# Windows.


def test_the_windows_of_a_right_loop_are_those_of_its_steps(model, optimizer):
    with record() as trace:
        for window in (4, 4, 2):
            for _ in range(window):
                model(X).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert trace.windows() == [4, 4, 2]
    assert trace.leftover() == 0
    assert str(trace) == repr(trace) == "SGD  " + " ".join("bbbbSzbbbbSzbbSz")


def test_gradients_from_before_the_block_are_no_micro_batch_but_are_in_the_norm(model, optimizer):
    model(X).sum().backward()
    with record() as trace:
        model(X).sum().backward()
        optimizer.step()
    assert trace.windows() == [1]
    assert norms(trace, "step") == [pytest.approx(108**0.5)]


@pytest.mark.parametrize(("value", "told"), [(-1.0, "z"), (0.0, "")])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_gradients_from_before_the_block_that_it_zeroes_are_a_zeroing_unless_they_are_zero(
    model, optimizer, name, value, told
):
    p = getattr(model, name)
    p.grad = torch.full_like(p, value)
    with record() as trace:
        optimizer.zero_grad()
    assert story(trace) == told


def test_the_norms_of_a_backward_call_and_of_a_step_are_read_together(monkeypatch):
    """Each read would wait for a GPU."""
    parameters = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in 51 * (torch.float32, torch.bfloat16)]
    optimizer, reads = SGD(parameters, lr=0.1), []
    for name in ("item", "tolist"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, read=read: (reads.append(1), read(tensor))[1])
    with record() as trace:
        for _ in range(8):
            sum(p.float().sum() for p in parameters).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert trace.windows() == [8]
    assert len(reads) <= 2 * (
        8 + 2
    )  # once for each data type, after each backward call, at the step, and at the zeroing
    assert norms(trace, "step") == [pytest.approx(8 * (3 * 102) ** 0.5, rel=0.01)]


# What is not seen.


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_from_elsewhere_are_no_micro_batches(model, optimizer, in_place):
    with record() as trace:
        model(X).mean().backward()
        optimizer.step()
        for _ in range(2):
            optimizer.zero_grad(set_to_none=not in_place)
            for p, gradient in zip(
                model.parameters(), torch.autograd.grad(model(X).mean(), list(model.parameters())), strict=True
            ):
                p.grad = gradient if p.grad is None else p.grad.add_(gradient)
            optimizer.step()
    assert trace.windows() == [1, 0, 0]


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
    assert trace.windows("SGD") == [1]


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


def test_tensors_outside_any_module_are_seen():
    w = torch.ones(2, requires_grad=True)
    optimizer = SGD([w], lr=0.1)
    with record() as trace:
        (w * 3).sum().backward()
        torch.autograd.backward((w * 4).sum())
        optimizer.step()
    assert story(trace) == "bbS"
    assert norms(trace, "backward") == [pytest.approx(18**0.5), pytest.approx(98**0.5)]


def test_a_lane_that_is_not_there_is_an_error(model, optimizer):
    with record() as trace:
        model(X).mean().backward()
    with pytest.raises(ValueError, match=r"no lane 'Adam' in this trace, only \['SGD'\]"):
        trace.windows("Adam")


def test_an_empty_trace_has_no_lanes_windows_or_leftovers():
    with record() as trace:
        pass
    assert (trace.lanes, trace.windows(), trace.leftover(), str(trace)) == ([], [], 0, "")


# One event for one call.


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_one_forward_and_one_backward(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            for _ in range(2):  # one layer twice: its weights receive two gradients
                x = checkpoint(self.layer, x, use_reentrant=reentrant)
            return x

    model = Checkpointed()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record() as trace:
        for _ in range(2):
            model(X.clone().requires_grad_()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert story(trace) == "bbSz"


# Nothing is changed.


def attached(model):
    """All that record() attaches itself to."""
    of_weights = [each for p in model.parameters() for each in (p._post_accumulate_grad_hooks, p._backward_hooks)]
    return [*hooks(), *(dict(each or {}) for each in of_weights)]


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_everything_is_detached_however_the_block_ends(model, optimizer, error):
    before = attached(model)
    try:
        with record() as trace:
            model(X).mean().backward()
            assert attached(model) != before
            if error:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        assert error
    assert attached(model) == before
    model(X).mean().backward()
    assert story(trace) == "b"


def test_an_interrupt_in_mid_backward_detaches_everything(model, optimizer):
    def interrupt(_):
        raise KeyboardInterrupt

    handle = model.bias.register_hook(interrupt)
    before = attached(model)
    with pytest.raises(KeyboardInterrupt):
        with record():
            model(X).mean().backward()
    assert attached(model) == before
    handle.remove()
