"""step_through: what each moment is said to do, what it shows, and that all stays as it was."""

import json
import re
import sys
from html import unescape
from itertools import pairwise

import IPython.display
import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD

from course_utils import Tally, mlp, step_through
from course_utils.ask.display import COURSE
from course_utils.stepping import play_with
from course_utils.stepping.drawing import frames
from course_utils.stepping.recorder import LIMIT, record_steps
from course_utils.stepping.words import sentence
from hooked import hooks


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def w():
    return nn.Parameter(torch.tensor(1.0))


def told(moments):
    """The line of each moment, and what is said of it, without the first."""
    return [(now.line, sentence(before, now)) for before, now in pairwise(moments)]


def correct(w, optimizer, xs=(2.0, 3.0)):
    for x in xs:
        loss = w * x
        loss.backward()
        if x > 2:
            optimizer.step()
            optimizer.zero_grad()


def zeroed_before_the_step(w, optimizer):
    (w * 2.0).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def never_zeroed(w, optimizer):
    for x in (2.0, 3.0, 4.0):
        (w * x).backward()
        if x < 4:
            optimizer.step()


def in_a_function(w, optimizer):
    def update():
        optimizer.step()
        optimizer.zero_grad()

    (w * 2.0).backward()
    update()


def by_hand(w, optimizer):
    (w * 4.0).backward()
    nn.utils.clip_grad_value_([w], 1.0)
    with torch.no_grad():
        w -= 0.5 * w.grad
    w.grad = None
    w.abs()


def several_lines(w, optimizer):
    loss = (
        w
        * 2.0
    )  # fmt: skip
    loss.backward()


def an_error(w, optimizer):
    (w * 2.0).backward()
    optimizer.stop()


def a_caught_error(w, optimizer):
    try:
        w.missing()
    except AttributeError:
        (w * 2.0).backward()


def not_a_number(w, optimizer):
    (w * float("nan")).backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.enable_grad()
def decorated(w, optimizer):
    (w * 2.0).backward()


FIRST = "`backward()` puts the gradient of micro-batch 1 into `.grad`: None → {}."
AGAIN, UNUSED = " An earlier update has used micro-batch 1 already.", " No step has used micro-batch {}."
HELD = "The loop has ended after 0 updates. `.grad` still holds micro-batch 1." + UNUSED.format(1)
ONE, NONE = "The loop has ended after 1 update.", "The loop has ended after 0 updates."
CASES = {
    correct: [
        (3, "Now loss = 2."),
        (4, FIRST.format(2)),
        (3, "Now loss = 3."),
        (4, "`backward()` adds the gradient of micro-batch 2 to `.grad`: 2 → 5."),
        (6, "Update 1: `step()` uses micro-batches 1, 2: w 1 → -4."),
        (7, "This line empties `.grad`: 5 → None."),
        (0, ONE),
    ],
    zeroed_before_the_step: [
        (2, FIRST.format(2)),
        (3, "This line empties `.grad`: 2 → 0. No step has used micro-batch 1: thrown away."),
        (4, "Update 1: `step()` finds no gradient of a micro-batch in `.grad`: w 1 → 1."),
        (0, ONE),
    ],
    never_zeroed: [
        (3, FIRST.format(2)),
        (5, "Update 1: `step()` uses micro-batch 1: w 1 → -1."),
        (3, "`backward()` adds the gradient of micro-batch 2 to `.grad`: 2 → 5."),
        (5, "Update 2: `step()` uses micro-batches 1, 2: w -1 → -6." + AGAIN),
        (3, "`backward()` adds the gradient of micro-batch 3 to `.grad`: 5 → 9."),
        (0, "The loop has ended after 2 updates. `.grad` still holds micro-batches 1, 2, 3." + UNUSED.format(3)),
    ],
    in_a_function: [
        (6, FIRST.format(2)),
        (7, "Update 1: `step()` uses micro-batch 1: w 1 → -1."),
        (7, "This line empties `.grad`: 2 → None."),
        (0, ONE),
    ],
    by_hand: [
        (2, FIRST.format(4)),
        (3, "This line changes `.grad`: 4 → 1."),
        (5, "This line changes the weights: w 1 → 0.5."),
        (6, "This line empties `.grad`: 1 → None. No step has used micro-batch 1: thrown away."),
        (0, NONE),
    ],
    several_lines: [(2, "Now loss = 2."), (6, FIRST.format(2)), (0, HELD)],
    an_error: [
        (2, FIRST.format(2)),
        (3, "The loop stops at this line with an error. AttributeError: 'SGD' object has no attribute 'stop'"),
    ],
    a_caught_error: [(5, FIRST.format(2)), (0, HELD)],
    not_a_number: [
        (2, FIRST.format("NaN")),
        (3, "Update 1: `step()` uses micro-batch 1: w 1 → NaN."),
        (4, "This line empties `.grad`: NaN → None."),
        (0, ONE),
    ],
    decorated: [(3, FIRST.format(2)), (0, HELD)],
}


@pytest.mark.parametrize("loop", CASES, ids=lambda loop: loop.__name__)
def test_each_moment_is_told_with_its_line_and_its_numbers_and_everything_is_detached(loop, w):
    before = hooks()
    _, moments = record_steps(loop, w, SGD([w], lr=1.0))
    assert told(moments) == CASES[loop]
    assert sentence(moments[0], moments[0]) == "The loop is called. None of its lines has run yet."
    assert hooks() == before


def test_of_two_optimizers_each_has_its_name_and_its_ledger_and_of_a_model_the_page_shows_the_numbers():
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)

    def loop(first, second, one, other, x):
        for model, optimizer in ((first, one), (second, other), (first, one)):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    optimizers = (SGD(model.parameters(), lr=0.1) for model in (first, second))
    _, moments = record_steps(loop, first, second, *optimizers, torch.ones(1, 1))
    last = moments[-1]
    assert {lane: book.updates for lane, book in last.ledgers.items()} == {"SGD": ((1,), (3,)), "SGD 2": ((2,),)}
    assert [*last.values] == ["first.weight", "first.bias", "second.weight", "second.bias"]
    said = [text for _, text in told(moments)]
    assert said[0] == "`backward()` puts the gradient of micro-batch 1 into `.grad`."
    assert said[4] == "Update 1 of SGD 2: `step()` uses micro-batch 2."


def test_a_closure_is_recorded(w):
    def loop(w, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (w - 3.0) ** 2
            loss.backward()
            return loss

        optimizer.step(closure)

    kinds = [(one.kind, one.line) for one in record_steps(loop, w, LBFGS([w], max_iter=1))[1][1:]]
    assert kinds == [("backward", 8), ("step", 8), ("end", 0)]


@pytest.mark.parametrize("fused", [False, True])
def test_no_step_has_used_what_a_skipped_step_leaves(w, fused):
    def overflow(w, optimizer, scaler):
        scaler.scale(w * float("inf")).backward()
        scaler.step(optimizer)

    _, moments = record_steps(overflow, w, SGD([w], lr=0.5, fused=fused), torch.amp.GradScaler("cpu"))
    assert told(moments)[-1] == (0, HELD)


def test_an_interrupt_ends_the_run_and_everything_is_detached_and_another_tracer_comes_back(w):
    def loop(w, stops):
        (w * 2.0).backward()
        if stops:
            raise KeyboardInterrupt

    def tracer(frame, event, arg):
        return None

    before, hooked = sys.gettrace(), hooks()
    try:
        sys.settrace(tracer)
        record_steps(loop, w, False)
        with pytest.raises(KeyboardInterrupt):
            record_steps(loop, w, True)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert hooks() == hooked


@pytest.mark.parametrize(("calls", "full"), [(LIMIT - 2, False), (LIMIT - 1, True)])  # and the start
def test_a_long_loop_runs_to_its_end_and_a_full_record_says_so(w, calls, full):
    def long(w):
        for _ in range(calls):
            (w * 2.0).backward()

    _, moments = record_steps(long, w)
    assert w.grad == 2 * calls
    assert len(moments) == calls + 2
    assert ("The record is full" in told(moments)[-1][1]) == full


# What cannot be recorded


@pytest.mark.parametrize("not_a_loop", [print, "train", nn.Linear(1, 1)])
def test_only_a_plain_function_is_taken(not_a_loop):
    with pytest.raises(TypeError, match="pass the loop itself, a function that is written with def"):
        record_steps(not_a_loop)


def test_wrong_arguments_and_a_function_without_source_are_refused(w):
    with pytest.raises(TypeError, match="missing a required argument: 'optimizer'"):
        record_steps(correct, w)
    with pytest.raises(ValueError, match="correct gets no weights"):
        record_steps(correct, 1.0, None)
    names = {}
    exec("def loop(w):\n    w.sum().backward()\n", names)
    with pytest.raises(ValueError, match="loop has no source"):
        record_steps(names["loop"], w)


# What is shown


def modulo(model, batches, optimizer, n):
    for i, batch in enumerate(batches):
        (model(batch).mean() / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def five():
    """A loop over five micro-batches, and what it is called with."""
    tally = Tally(5)
    return modulo, tally, torch.arange(5).split(1), SGD(tally.parameters(), lr=1.0), 2


def test_it_is_shown_in_html_in_text_and_as_a_table(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **_: shown.append(bundle))
    step_through(*five())
    (bundle,) = shown
    assert bundle.keys() == {"text/html", "text/plain", COURSE}
    lines = bundle["text/plain"].splitlines()
    assert lines[:2] == ["modulo, step by step:", "  The loop is called. None of its lines has run yet."]
    page, _, table = bundle["text/html"].partition("\n<details>")
    assert page.startswith(" \n<iframe ")
    assert "\n" not in page[2:], "a blank line would end it in a page of Markdown"
    assert table.count("<tr ") == 1 + 11  # a head, the start, 5 backward passes, 2 steps, 2 zeroings, the end
    course = bundle[COURSE]
    assert json.loads(json.dumps(course, allow_nan=False)) == course
    held = "– | 1 | 1, 2 | 1, 2 | – | 3 | 3, 4 | 3, 4 | – | 5 | 5"
    assert " | ".join(row[-1] for row in course["rows"][1:]) == held


def test_a_moment_shows_the_line_the_numbers_and_the_ledger():
    lines, moments = record_steps(*five())
    index = [one.kind for one in moments].index("step")
    html = "".join(frames(lines, moments)[index])
    lit = re.findall(r'<div [^>]*aria-current="step">(.*?)</div>', html)
    assert [" ".join(line.split()) for line in lit] == ["▶ optimizer.step()"]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    assert rows[:2] == [["", "value", ".grad"], ["model.weight", "-0.5, -0.5, 0, 0, 0", "0.5, 0.5, 0, 0, 0"]]
    blocks = {head: re.findall(r"<span[^>]*>(\d+)</span>", row) for head, row in rows[2:]}
    assert blocks == {"in .grad now": ["1", "2"], "◆ update 1": ["1", "2"]}


def test_of_a_larger_model_norms_are_shown():
    model = mlp(4, 8, 2)

    def loop(model):
        model(torch.ones(1, 4)).sum().backward()

    html = "".join(frames(*record_steps(loop, model))[1])
    assert len(re.findall("<td[^>]*>norm ", html)) == 4  # the biases have their numbers
    assert html.count("<td class=changed>1, 1</td>") == 1


def test_a_name_that_looks_like_html_is_escaped(w):
    def loop(w, x):
        note = "<b>&"  # <script>
        (w * x).backward()
        raise ValueError(note)

    html = "".join(frames(*record_steps(loop, w, 1.0))[-1])
    assert "<b>&" not in html
    assert "<script>" not in html
    assert "ValueError: &lt;b&gt;&amp;" in html


def test_every_state_that_sliders_can_reach_is_computed_in_the_order_in_which_they_find_it(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    play_with("Powers", {"base": [2, 3], "power": [1, 2, 4]}, lambda base, power: [f"{base**power}.", "<b>it</b>"])
    (bundle,) = shown
    page = unescape(re.search('srcdoc="([^"]*)"', bundle["text/html"])[1])
    found = json.loads(re.search('type="application/json">(.*?)</script>', page)[1])
    assert found["controls"] == [["base", "2", "3"], ["power", "1", "2", "4"]]
    said = [found["pieces"][frame[0]] for frame in found["frames"]]
    assert said == ["2.", "4.", "16.", "3.", "9.", "81."]
    assert bundle["text/plain"] == "Powers. base: 2, 3; power: 1, 2, 4"
    with pytest.raises(ValueError, match="441 settings"):
        play_with("Too many", {"x": range(21), "y": range(21)}, lambda x, y: [""])
