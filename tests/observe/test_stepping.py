"""The recorder of loops: its values are those of a calculation by hand, and what the learner has stays as it was."""

import sys
import threading

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam

from course_utils import Tally
from course_utils.recording.stepping import format_number, record_steps
from hooked import hooks


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def w():
    return nn.Parameter(torch.tensor(1.0))


def one_weight(w, batches, optimizer):
    for x in batches:
        loss = w * x
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def modulo(model, batches, optimizer, n):
    for i, batch in enumerate(batches):
        (model(batch).mean() / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def of_kind(steps, kind):
    return [frame for frame in steps.frames if frame.kind == kind]


def grad(frame, name="w"):
    values = frame.grads[name]
    return None if values is None else values.numbers[0]


# Values


def test_weights_gradients_and_momentum_are_those_of_a_calculation_by_hand(w):
    steps = record_steps(one_weight, w, [2.0, 4.0, 8.0], SGD([w], lr=0.5, momentum=0.5))
    weight, buffer, expected = 1.0, 0.0, []
    for x in (2.0, 4.0, 8.0):  # the gradient of w * x is x
        buffer = 0.5 * buffer + x
        weight -= 0.5 * buffer
        expected.append((weight, x, buffer))
    found = [
        (frame.weights["w"].numbers[0], grad(frame), frame.state["w"]["momentum_buffer"].numbers[0])
        for frame in of_kind(steps, "step")
    ]
    assert found == expected
    assert [grad(frame) for frame in of_kind(steps, "zero")] == [None] * 3


def test_none_and_zeros_are_told_apart(w):
    def zeros(w, batches, optimizer):
        for x in batches:
            (w * x).backward()
            optimizer.zero_grad(set_to_none=False)

    steps = record_steps(zeros, w, [2.0], SGD([w], lr=0.5))
    assert grad(steps.frames[0]) is None
    assert [grad(frame) for frame in of_kind(steps, "zero")] == [0.0]


def test_every_line_has_a_frame_in_the_order_in_which_it_ran(w):
    steps = record_steps(one_weight, w, [2.0, 4.0], SGD([w], lr=0.5))
    kinds = ["start", *["line", "line", "backward", "step", "zero"] * 2, "line", "end"]
    assert [frame.kind for frame in steps.frames] == kinds
    assert [frame.line for frame in steps.frames] == [1, *[2, 3, 4, 5, 6] * 2, 2, 0]
    assert [frame.taken for frame in steps.frames if frame.line == 2] == [True, True, False]
    assert steps.frames[2].variables == {"x": "2", "loss": "2"}


SHOWN = {
    "few": torch.tensor([1.0, 2.5]), "four": torch.ones(4), "true": True, "none": None, "whole": 3, "half": 0.5,
    "numbers": [1, 2.0], "five": [1] * 5, "words": ["a"], "pair": (1, 2), "text": "x" * 20,
}  # fmt: skip
HIDDEN = [torch.ones(5), torch.ones(2, 1), torch.tensor(1j), ("a", "b"), "x" * 21, {}]


def test_a_variable_is_shown_if_it_is_short(w):
    def loop(w, shown, hidden, more=0):
        few, four, true, none, whole, half, numbers, five, words, pair, text = shown  # noqa: RUF059
        long, wide, imaginary, names, story, table = hidden  # noqa: RUF059
        w.abs()

    assert record_steps(loop, w, list(SHOWN.values()), HIDDEN).frames[-1].variables == {
        "few": "[1, 2.5]", "four": "[1, 1, 1, 1]", "true": "True", "none": "None", "whole": "3", "half": "0.5",
        "numbers": "[1, 2]", "five": "list of 5", "words": "list of 1", "pair": "[1, 2]", "text": repr("x" * 20),
    }  # fmt: skip


def test_two_events_on_one_line_have_a_frame_each(w):
    def dense(w, batches, optimizer):
        for x in batches:
            (w * x).backward(), optimizer.step(), optimizer.zero_grad()

    steps = record_steps(dense, w, [2.0], SGD([w], lr=0.5))
    events = [(frame.kind, frame.line, grad(frame), frame.weights["w"].numbers[0]) for frame in steps.frames[2:-2]]
    assert events == [("backward", 3, 2.0, 1.0), ("step", 3, 2.0, 0.0), ("zero", 3, None, 0.0)]


def test_what_a_function_inside_the_loop_does_belongs_to_the_line_that_calls_it():
    tally = Tally(4)

    def loop(model, batches, optimizer):
        def update():
            optimizer.step()
            optimizer.zero_grad()

        [model(batch).mean().backward() for batch in batches]
        update()

    steps = record_steps(loop, tally, torch.arange(4).split(1), SGD(tally.parameters(), lr=1.0))
    assert [frame.line for frame in of_kind(steps, "backward")] == [6] * 4
    assert [(frame.kind, frame.line) for frame in steps.frames if frame.line == 7] == [("step", 7), ("zero", 7)]


def test_a_statement_of_several_lines_is_one_line(w):
    def loop(w, optimizer):
        loss = (
            w
            * 2.0
        )  # fmt: skip
        loss.backward()

    steps = record_steps(loop, w, SGD([w], lr=0.5))
    assert [(frame.kind, frame.line) for frame in steps.frames] == [
        ("start", 1), ("line", 2), ("backward", 6), ("end", 0)
    ]  # fmt: skip


@pytest.mark.parametrize("style", ["None", "zero_", "data"])
def test_zeroing_by_hand_belongs_to_the_line_that_did_it(w, style):
    def none(w):
        (w * 2.0).backward()
        w.grad = None
        w.abs()

    def zero_(w):
        (w * 2.0).backward()
        w.grad.zero_()
        w.abs()

    def data(w):
        (w * 2.0).backward()
        w.grad.data.zero_()
        w.abs()

    steps = record_steps({"None": none, "zero_": zero_, "data": data}[style], w)
    assert [(frame.line, frame.ledgers[frame.lane].lost) for frame in of_kind(steps, "zero")] == [(3, (1,))]


def test_clipping_is_a_change_and_an_update_by_hand_changes_the_weights(w):
    def loop(w):
        (w * 4.0).backward()
        nn.utils.clip_grad_norm_([w], 1.0)
        with torch.no_grad():
            w -= 0.5 * w.grad

    steps = record_steps(loop, w)
    (change,) = of_kind(steps, "change")
    assert change.line == 3
    assert grad(change) == pytest.approx(1.0, abs=1e-5)
    moved = [b.line for a, b in zip(steps.frames, steps.frames[1:], strict=False) if a.weights != b.weights]
    assert moved == [5]


def test_no_step_has_used_what_a_skipped_step_leaves(w):
    def overflow(w, optimizer, scaler):
        scaler.scale(w * float("inf")).backward()
        scaler.step(optimizer)

    steps = record_steps(overflow, w, SGD([w], lr=0.5), torch.amp.GradScaler("cpu"))
    ledger = steps.frames[-1].ledgers["SGD"]
    assert (ledger.held, ledger.updates, ledger.unused) == ((1,), (), (1,))


def test_a_closure_and_adam_are_recorded(w):
    def loop(w, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (w - 3.0) ** 2
            loss.backward()
            return loss

        optimizer.step(closure)

    steps = record_steps(loop, w, LBFGS([w], max_iter=2))
    assert steps.frames[-1].kind == "end"
    assert len(of_kind(steps, "step")) == 1
    assert of_kind(steps, "backward")[0].line == 8

    w.grad = None
    steps = record_steps(one_weight, w, [2.0], Adam([w], lr=0.5))
    (step,) = of_kind(steps, "step")
    assert step.state["w"]["step"].numbers == (1.0,)
    assert step.state["w"]["exp_avg"].numbers[0] == pytest.approx(0.2, rel=1e-12)  # (1 - 0.9) * 2
    assert step.state["w"]["exp_avg_sq"].numbers[0] == pytest.approx(0.004, rel=1e-12)  # (1 - 0.999) * 4


def test_what_a_scheduler_does_is_seen(w, recwarn):
    def loop(w, batches, optimizer, scheduler):
        for x in batches:
            (w * x).backward()
            optimizer.step()
            scheduler.step()

    optimizer = SGD([w], lr=0.5)
    steps = record_steps(loop, w, [1.0, 1.0], optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    assert [frame.optimizers for frame in of_kind(steps, "step")] == [("SGD, lr 0.5",), ("SGD, lr 0.25",)]
    assert [frame.weights["w"].numbers[0] for frame in of_kind(steps, "step")] == [0.5, 0.0]  # 1 - 0.5, - 0.25 * 2
    assert not recwarn.list


def test_of_a_large_tensor_the_norm_is_kept():
    model = nn.Linear(5, 5, bias=False)

    def loop(model):
        model(torch.ones(1, 5)).sum().backward()

    (frame,) = of_kind(record_steps(loop, model), "backward")
    assert frame.weights["weight"].numbers == ()
    assert frame.grads["weight"] == ((), 5.0)  # 25 ones


# The ledger


def test_two_optimizers_have_a_ledger_each():
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)

    def loop(first, second, one, other, x):
        for model, optimizer in ((first, one), (second, other), (first, one)):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    optimizers = (SGD(model.parameters(), lr=0.1) for model in (first, second))
    steps = record_steps(loop, first, second, *optimizers, torch.ones(1, 1))
    updates = {lane: book.updates for lane, book in steps.frames[-1].ledgers.items()}
    assert updates == {"SGD": ((1,), (3,)), "SGD 2": ((2,),)}
    assert set(steps.frames[0].weights) == {"first.weight", "first.bias", "second.weight", "second.bias"}


# How it ends


@pytest.mark.parametrize("error", [ValueError("lost"), SystemExit(3)])
def test_an_error_ends_the_record_at_its_line_and_everything_is_detached(w, error):
    def loop(w, batches):
        for x in batches:
            (w * x).backward()
            if x == 4.0:
                raise error

    before = hooks()
    steps = record_steps(loop, w, [2.0, 4.0, 8.0])
    assert hooks() == before
    last = steps.frames[-1]
    assert (last.kind, last.line, last.error) == ("error", 5, f"{type(error).__name__}: {error}")
    assert grad(last) == 6.0


def test_after_an_error_that_the_loop_catches_the_record_goes_on(w):
    def loop(w, batches):
        for x in batches:
            try:
                w.missing()
            except AttributeError:
                (w * x).backward()

    steps = record_steps(loop, w, [2.0])
    assert (steps.frames[-1].kind, of_kind(steps, "backward")[0].line) == ("end", 6)
    assert not any(frame.line == 4 for frame in steps.frames)


def test_an_interrupt_ends_the_run_and_everything_is_detached(w):
    def loop(w, batches):
        for x in batches:
            (w * x).backward()
            raise KeyboardInterrupt

    before = hooks()
    with pytest.raises(KeyboardInterrupt):
        record_steps(loop, w, [2.0])
    assert hooks() == before


def test_another_tracer_comes_back_after_it(w):
    def tracer(frame, event, arg):
        return None

    before = sys.gettrace()
    try:
        sys.settrace(tracer)
        record_steps(one_weight, w, [2.0], SGD([w], lr=0.5))
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_another_thread_is_not_traced(w):
    traced = []

    def loop(w):
        thread = threading.Thread(target=lambda: traced.append(sys.gettrace()))
        thread.start()
        thread.join()

    record_steps(loop, w)
    assert traced == [None]


def test_a_long_loop_is_cut_and_says_so(w):
    def endless(w):
        try:
            while True:
                (w * 2.0).backward()
        except Exception:
            pass

    before = hooks()
    steps = record_steps(endless, w, limit=10)
    assert (len(steps.frames), steps.frames[-1].kind) == (11, "cut")
    assert hooks() == before


# What cannot be recorded


@pytest.mark.parametrize("not_a_loop", [print, len, "train", nn.Linear(1, 1)])
def test_only_a_plain_function_is_taken(not_a_loop):
    with pytest.raises(TypeError, match="pass the loop itself, a function that is written with def"):
        record_steps(not_a_loop)


def test_wrong_arguments_are_named(w):
    with pytest.raises(TypeError, match="missing a required argument: 'optimizer'"):
        record_steps(one_weight, w, [2.0])
    with pytest.raises(ValueError, match="one_weight gets no weights"):
        record_steps(one_weight, 1.0, [2.0], None)


def test_a_function_without_source_is_refused():
    names = {}
    exec("def loop(w):\n    w.sum().backward()\n", names)
    with pytest.raises(ValueError, match="the source of loop is not available"):
        record_steps(names["loop"], torch.ones(1, requires_grad=True))


def test_a_decorated_loop_is_recorded_as_it_runs(w):
    @torch.enable_grad()
    def loop(w, x):
        (w * x).backward()

    with torch.no_grad():
        steps = record_steps(loop, w, 2.0)
    assert [(frame.kind, frame.line) for frame in steps.frames] == [("start", 1), ("backward", 3), ("end", 0)]


def test_a_number_is_shown_with_four_digits():
    values = (0.30000000000000004, -0.0, 7, float("inf"), float("nan"), -1234567.0)
    assert [format_number(value) for value in values] == ["0.3", "0", "7", "infinity", "NaN", "-1.235e+06"]
