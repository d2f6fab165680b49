"""step_through: what is shown, and what each line is said to have done."""

import json
import re

import IPython.display
import pytest
import torch
from torch import nn
from torch.optim import SGD

from course_utils import Tally, mlp, step_through
from course_utils.ask.display import COURSE, with_code
from course_utils.recording.stepping import record_steps
from course_utils.stepping.drawing import code, key_frames, ledger, panel, state
from course_utils.stepping.words import sentence


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)


def modulo(model, batches, optimizer, n):
    for i, batch in enumerate(batches):
        (model(batch).mean() / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def forgetful(model, batches, optimizer, n):
    for i, batch in enumerate(batches):
        (model(batch).mean() / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()


def five(loop=modulo, n=2):
    """A loop over five micro-batches, and what it is called with."""
    tally = Tally(5)
    return loop, tally, torch.arange(5).split(1), SGD(tally.parameters(), lr=1.0), n


def sentences(steps):
    return [sentence(steps, place) for place in range(len(steps.frames))]


def test_it_is_shown_in_html_and_in_text(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: shown.append(bundle))
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
    assert [row[-1] for row in course["rows"][1:]] == [
        "–",
        "1",
        "1, 2",
        "1, 2",
        "–",
        "3",
        "3, 4",
        "3, 4",
        "–",
        "5",
        "5",
    ]


def test_a_sentence_says_what_each_line_did():
    w = nn.Parameter(torch.tensor(1.0))

    def loop(w, batches, optimizer):
        for x in batches:
            loss = w * x
            loss.backward()
            if x > 2:
                optimizer.step()
                optimizer.zero_grad()

    assert sentences(record_steps(loop, w, [2.0, 3.0], SGD([w], lr=1.0))) == [
        "The loop is called. None of its lines has run yet.",
        "The next round begins: x = 2.",
        "Now loss = 2.",
        "`backward()` puts the gradient of micro-batch 1 into `.grad`: None → 2.",
        "False: the lines below it are skipped.",
        "The next round begins: x = 3.",
        "Now loss = 3.",
        "`backward()` adds the gradient of micro-batch 2 to `.grad`: 2 → 5.",
        "True: the lines below it run.",
        "Update 1: `step()` uses micro-batches 1 and 2: w 1 → -4.",
        "`zero_grad()` empties `.grad`: 5 → None.",
        "Nothing is left: the loop is over.",
        "The loop has ended after 1 update.",
    ]


def test_what_goes_wrong_is_said_too():
    w = nn.Parameter(torch.tensor(1.0))

    def early(w, batches, optimizer):
        for x in batches:
            (w * x).backward()
            optimizer.zero_grad()
            optimizer.step()

    def broken(w, batches, optimizer):
        (w * batches[0]).backward()
        optimizer.stop()

    said = sentences(record_steps(early, w, [2.0], SGD([w], lr=1.0)))
    assert "`zero_grad()` empties `.grad`: 2 → None. No step has used micro-batch 1: thrown away." in said
    assert "Update 1: `step()` finds nothing in `.grad`, which is None: no weight moves." in said
    assert sentences(record_steps(broken, w, [2.0], SGD([w], lr=1.0)))[-1] == (
        "The loop stops at this line with an error. AttributeError: 'SGD' object has no attribute 'stop'"
    )
    forgotten = sentences(record_steps(*five(forgetful)))
    assert any(text.endswith("An earlier update has used micro-batches 1 and 2 already.") for text in forgotten)
    assert forgotten[-1].endswith("`.grad` still holds micro-batches 1 to 5; no step has used micro-batch 5.")
    assert "it holds 9 moments" in sentences(record_steps(*five(), limit=9))[-1]


def test_a_moment_shows_the_line_the_numbers_and_the_ledger():
    steps = record_steps(*five())
    place = next(place for place, frame in enumerate(steps.frames) if frame.kind == "step")
    frame = steps.frames[place]
    lit = re.findall(r'<div [^>]*aria-current="step">(.*?)</div>', code(steps, frame))
    assert [re.sub(r"\s+", " ", line) for line in lit] == ["▶ optimizer.step()"]
    rows = re.findall(r"<tr>(.*?)</tr>", state(steps, place))
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    assert cells == [
        ["", "value", ".grad"],
        ["weight", "-0.5, -0.5, 0, 0, 0", "0.5, 0.5, 0, 0, 0"],
    ]
    blocks = [re.findall(r"<span[^>]*>(\d+)</span>", row) for row in ledger(steps, frame).split("</tr>")]
    assert blocks[:2] == [["1", "2"], ["1", "2"]]  # in .grad, and in update 1


def test_of_a_larger_model_norms_are_shown():
    model = mlp(4, 8, 2)

    def loop(model, optimizer):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    steps = record_steps(loop, model, SGD(model.parameters(), lr=0.1))
    for place, frame in enumerate(steps.frames):
        html = state(steps, place)
        assert html.count(">None<") == sum(grad is None for grad in frame.grads.values())
        assert all(name in html for name in frame.grads)


def test_a_name_that_looks_like_html_is_escaped():
    w = nn.Parameter(torch.tensor(1.0))

    def loop(w, x):
        note = "<b>&"  # <script>
        (w * x).backward()
        raise ValueError(note)

    steps = record_steps(loop, w, 1.0)
    last = len(steps.frames) - 1
    html = "".join(panel(steps, last)) + with_code(sentence(steps, last))
    assert "<b>&" not in html
    assert "<script>" not in html
    assert "ValueError: &lt;b&gt;&amp;" in html


def test_a_long_run_has_sixteen_key_frames_and_the_last_is_the_end():
    tally = Tally(40)
    steps = record_steps(modulo, tally, torch.arange(40).split(1), SGD(tally.parameters(), lr=1.0), 4)
    keys = key_frames(steps)
    assert len(keys) == 16
    assert keys[-1] == len(steps.frames) - 1
