"""step_through: what is shown, the versions of a loop, the widget, the page of its own."""

import inspect
import json
import re
import textwrap

import IPython.display
import pytest
import torch
from torch import nn
from torch.optim import SGD

from course_utils import Tally, mlp, step_through
from course_utils.practice import stepping as room
from course_utils.practice.display import COURSE
from course_utils.practice.stepping.drawing import code, key_frames, ledger, marked_up, panel, state
from course_utils.practice.stepping.player import player
from course_utils.practice.stepping.variants import variants
from course_utils.practice.stepping.words import sentence
from course_utils.recording.stepping import Loop, record_steps

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def shown(monkeypatch):
    """The bundles that have been displayed."""
    bundles = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw, metadata=None: bundles.append(bundle))
    return bundles


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(room, "show_widget", lambda *_: None)


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


# What is shown


def test_it_is_shown_as_a_widget_in_html_and_in_text(shown):
    step_through(*five())
    (bundle,) = shown
    assert bundle.keys() == {WIDGET, "text/html", "text/plain", COURSE}
    assert bundle["text/plain"] == (
        "modulo, step by step:\n"
        "  update 1 uses micro-batches 1 and 2\n"
        "  update 2 uses micro-batches 3 and 4\n"
        "  left in .grad: micro-batch 5\n"
        "Run this cell to step through it, and to change the loop: without zero_grad(), zero_grad() before step(), "
        "zero_grad() after every micro-batch, without the division."
    )
    html = bundle["text/html"]
    assert html.count("<tr>") == 1 + 11  # a head, the start, 5 backward passes, 2 steps, 2 zeroings, the end
    assert not re.search(r"<script|<style|<div|class=|object at 0x", html)
    course = bundle[COURSE]
    assert json.loads(json.dumps(course, allow_nan=False)) == course
    assert course["kind"] == "steps"
    assert [row[-1] for row in course["tracks"][0]["rows"]] == [
        "–", "1", "1, 2", "1, 2", "–", "3", "3, 4", "3, 4", "–", "5", "5"
    ]  # fmt: skip


def test_as_the_last_line_of_a_cell_it_is_displayed_once(shown):
    step_through(*five())._ipython_display_()
    assert len(shown) == 1


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
        "`backward()` adds the gradient of micro-batch 2, 3, to `.grad`: 2 → 5.",
        "True: the lines below it run.",
        "Update 1: `step()` uses micro-batches 1 and 2: w 1 → -4.",
        "`zero_grad()` empties `.grad`: 5 → None.",
        "Nothing is left: the loop is over.",
        "The loop has ended after 1 update.",
    ]


def test_a_gradient_is_not_named_where_the_sum_does_not_show_it():
    def loop(w, batches):
        for x in batches:
            (w * x).backward()

    def said(values, dtype=torch.float32):
        w = nn.Parameter(torch.ones((), dtype=dtype))
        return [text for text in sentences(record_steps(loop, w, values)) if "adds" in text]

    assert said([1.0, float("nan"), 1.0]) == [
        "`backward()` adds the gradient of micro-batch 2, NaN, to `.grad`: 1 → NaN.",
        "`backward()` adds the gradient of micro-batch 3 to `.grad`: NaN → NaN.",
    ]
    (text,) = said([256.0, 1.0], torch.bfloat16)
    assert text.startswith("`backward()` adds the gradient of micro-batch 2 to `.grad`")


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
        ["", *[f"weight[{i}]" for i in range(5)]],
        ["value", "-0.5", "-0.5", "0", "0", "0"],
        [".grad", "0.5", "0.5", "0", "0", "0"],
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
    html = "".join(panel(steps, last)) + marked_up(sentence(steps, last))
    assert "<b>&" not in html
    assert "<script>" not in html
    assert "ValueError: &lt;b&gt;&amp;" in html


def test_a_long_run_has_sixteen_key_frames_and_the_last_is_the_end():
    tally = Tally(40)
    steps = record_steps(modulo, tally, torch.arange(40).split(1), SGD(tally.parameters(), lr=1.0), 4)
    keys = key_frames(steps)
    assert len(keys) == 16
    assert keys[-1] == len(steps.frames) - 1


# The versions


def offered(source: str):
    """The versions of a loop that is written in a test, as text."""
    loop = Loop(modulo).changed(textwrap.dedent(source).strip().splitlines())
    tally = Tally(4)
    scene = room.Scene(loop, (tally, torch.arange(4).split(1), SGD(tally.parameters(), lr=1.0), 2), {})
    found = variants(scene.record(loop))
    assert all(scene.record(version).frames[-1].kind == "end" for version in found.values())
    return {name: "\n".join(version.lines) for name, version in found.items()}


def test_each_version_is_its_edit_and_nothing_else():
    found = variants(record_steps(*five()))
    source = textwrap.dedent(inspect.getsource(modulo)).rstrip()
    step, zero = "            optimizer.step()", "            optimizer.zero_grad()"
    backward = "(model(batch).mean() / n).backward()"
    edits = {
        "as written": ("", ""),
        "without zero_grad()": (zero, "            # left out: optimizer.zero_grad()"),
        "zero_grad() before step()": (
            f"{step}\n{zero}",
            f"{zero}  # moved here\n{step}\n            # was here: optimizer.zero_grad()",
        ),
        "zero_grad() after every micro-batch": (backward, f"{backward}\n        optimizer.zero_grad()  # added"),
        "without the division": (backward, "(model(batch).mean()).backward()  # not divided"),
    }
    expected = {name: source.replace(*edit) for name, edit in edits.items()}
    assert {name: "\n".join(version.lines) for name, version in found.items()} == expected


def test_a_version_runs_for_real():
    trace = room.Stepping(five()[0], five()[1:], {})
    held = {version: trace.run(version).trace.windows() for version in trace.versions}
    assert held == {
        "as written": [2, 2],
        "without zero_grad()": [2, 4],
        "zero_grad() before step()": [0, 0],
        "zero_grad() after every micro-batch": [0, 0],
        "without the division": [2, 2],
    }
    largest = [
        max(max(frame.grads["weight"].numbers) for frame in trace.run(version).frames if frame.grads["weight"])
        for version in ("as written", "without the division")
    ]
    assert largest == [0.5, 1.0]


@pytest.mark.parametrize(
    ("body", "versions"),
    [
        ("forward, step", []),
        ("zero, forward, step", ["without zero_grad()", "zero_grad() before step()"]),
        ("forward, zero, step", ["without zero_grad()"]),
    ],
)
def test_a_loop_is_offered_what_would_change_it(body, versions):
    lines = {"forward": "model(batch).mean().backward()", "step": "optimizer.step()", "zero": "optimizer.zero_grad()"}
    loop = ["def modulo(model, batches, optimizer, n):", "    for batch in batches:"]
    loop += [f"        {lines[name]}" for name in body.split(", ")]
    assert list(offered("\n".join(loop))) == ["as written", *versions]


def test_statements_on_one_line_are_left_alone_and_blocks_that_would_be_empty_stay_valid():
    found = offered("""
        def modulo(model, batches, optimizer, n):
            for i, batch in enumerate(batches):
                model(batch).mean().backward()
                optimizer.step()
                if i > 1:
                    optimizer.zero_grad()
    """)
    assert "pass  # left out: optimizer.zero_grad()" in found["without zero_grad()"]
    assert list(offered("""
        def modulo(model, batches, optimizer, n):
            for i, batch in enumerate(batches):
                (model(batch).mean() / n).backward()
                optimizer.step(); optimizer.zero_grad()
    """)) == ["as written"]  # fmt: skip


def test_only_the_division_of_the_loss_is_taken_away():
    found = offered("""
        def modulo(model, batches, optimizer, n):
            for i, batch in enumerate(batches):
                rate = i / n
                loss = model(batch // 1).mean() / n
                loss.backward()
    """)
    assert list(found) == ["as written", "without the division"]
    assert "rate = i / n" in found["without the division"]
    assert "loss = model(batch // 1).mean()  # not divided" in found["without the division"]
    assert list(offered("""
        def modulo(model, batches, optimizer, n):
            for i, batch in enumerate(batches):
                (model(batch).mean() * (len(batch) * 0.5)).backward()
    """)) == ["as written"]  # fmt: skip


FACTOR = 2.0


def threefold(w, optimizer, *, times=3):
    for _ in range(times):
        (w * FACTOR).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_version_keeps_defaults_and_global_variables():
    w = nn.Parameter(torch.tensor(1.0))
    found = variants(record_steps(threefold, w, SGD([w], lr=0.5)))
    scene = room.Scene(found["as written"], (w, SGD([w], lr=0.5)), {})
    weights = [scene.record(version).frames[-1].weights["w"].numbers[0] for version in found.values()]
    assert weights == [-2.0, -5.0, 1.0]  # 1 - 3; 1 - 1 - 2 - 3; nothing


def test_a_decorated_loop_has_no_versions():
    @torch.enable_grad()
    def loop(w, optimizer):
        w.abs().backward()
        optimizer.step()
        optimizer.zero_grad()

    w = nn.Parameter(torch.tensor(1.0))
    assert list(variants(record_steps(loop, w, SGD([w], lr=0.5)))) == ["as written"]


# The widget


def test_the_widget_goes_back_and_forth_and_runs_a_version_that_is_chosen():
    trace = room.Stepping(five()[0], five()[1:], {})
    ran = []

    def run(version):
        ran.append(version)
        return trace.run(version)

    widget = player(trace.versions, run)
    which, controls, text, shown = widget.children
    back, following, _, play, slider, _ = controls.children
    assert "The loop is called." in text.value
    back.click()
    assert slider.value == 0
    following.click()
    assert slider.value == play.value == 1
    assert "The next round begins" in text.value
    back.click()
    assert slider.value == 0
    play.value = slider.max
    following.click()
    assert slider.value == slider.max
    assert "The loop has ended after 2 updates." in text.value
    assert set(ran) == {"as written"}
    which.value = "without zero_grad()"
    assert ran[-1] == "without zero_grad()"
    assert slider.value == 0
    assert "# left out: optimizer.zero_grad()" in shown.value
    for control in (back, following):
        assert control.description
        assert control.tooltip
    assert 'role="status" aria-live="polite"' in text.value


def test_a_version_that_cannot_run_is_said():
    steps = record_steps(*five())

    def run(version):
        if version == "as written":
            return steps
        raise RuntimeError("no <memory>")

    widget = player(["as written", "other"], run)
    widget.children[0].value = "other"
    assert "RuntimeError: no &lt;memory&gt;" in widget.children[2].value


# The page


DATA = re.compile(r'<script id="data"[^>]*>(.*?)</script>', flags=re.S)


def test_the_page_needs_nothing_else_and_holds_every_version(quiet, tmp_path):
    trace = step_through(*five())
    path = trace.save(tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|\$(title|strip|data)", text)
    assert not re.search(r"<(link|img|iframe|object)|\b(src|href|srcset)=", DATA.sub("", text))
    data = json.loads(DATA.search(text)[1])
    assert [version["name"] for version in data["versions"]] == trace.versions
    for version in data["versions"]:
        assert len(version["moments"]) == len(trace.run(version["name"]).frames)
        for pieces in version["moments"]:
            assert all(0 <= number < len(data["pieces"]) for number in pieces)


def test_nothing_in_a_loop_can_end_the_script_of_its_page(quiet, tmp_path):
    def loop(w):
        note = "</script><script>alert(1)"  # $data </noscript>
        (w * 2.0).backward()
        return note

    w = nn.Parameter(torch.tensor(1.0))
    text = step_through(loop, w).save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "alert(1)" not in DATA.sub("", text).replace("&lt;", "<")
    assert any("$data" in piece for piece in json.loads(DATA.search(text)[1])["pieces"])
