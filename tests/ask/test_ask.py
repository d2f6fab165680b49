"""The interactive parts: each output has HTML and plain text, and never a widget's."""

import json
import re
import sys
from html import unescape

import IPython.display
import matplotlib.pyplot as plt
import pytest

from course_utils import ask, check, predict, recall
from course_utils.ask.display import COURSE

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def shown(monkeypatch):
    """The bundles that have been displayed."""
    bundles = []

    def show(bundle, raw, metadata=None):
        assert raw
        assert bundle.keys() - {WIDGET} - {"text/html", "text/markdown", "image/png"} == {"text/plain", COURSE}
        assert json.loads(json.dumps(bundle[COURSE], allow_nan=False)) == bundle[COURSE]
        for kind in bundle.keys() & {"text/html", "text/plain"}:
            assert not re.search(r"\w+\(|object at 0x", bundle[kind]), f"a repr in {kind}: {bundle[kind]}"
        bundles.append(bundle)

    monkeypatch.setattr(IPython.display, "display", show)
    return bundles


# predict and reveal


def test_a_question_is_shown_as_a_widget_and_in_html_and_text(shown):
    guess = predict("Is `1 < 2`?", ["yes & no", 3.5])
    assert guess.choice is None
    assert guess._widget.options == ("yes & no", "3.5")
    (bundle,) = shown
    assert bundle[WIDGET]["model_id"]
    assert "Is <code>1 &lt; 2</code>?" in bundle["text/html"]
    assert bundle["text/html"].index("yes &amp; no") < bundle["text/html"].index("3.5")
    assert bundle["text/plain"] == "Predict: Is `1 < 2`?\n  [ ] yes & no\n  [ ] 3.5"


@pytest.mark.parametrize("options", [[], ["one"], ["same", "same"], [1, "1"]])
def test_a_question_without_two_different_options_is_an_error(options):
    with pytest.raises(ValueError, match="at least two different options"):
        predict("Which?", options)


@pytest.mark.parametrize(
    ("choice", "revealed", "text"),
    [
        ("4", (4,), "Right. You predicted “4”, and that is what was measured."),
        ("1", ([4],), "Not quite. You predicted “1”; measured: 4."),
        ("4", (4, "recorded"), "Right. You predicted “4”, and that is what was recorded."),
        (None, (4, "recorded"), "Recorded: 4."),
    ],
)
def test_the_reveal_compares_the_prediction_with_what_was_measured_or_recorded(shown, choice, revealed, text):
    guess = predict("How many times?", [1, 4])
    guess._widget.value = choice
    assert not guess._widget.disabled
    measured, *basis = revealed
    guess.reveal(measured, basis=(basis or ["measured"])[0])
    assert guess._widget.disabled  # nothing can be chosen after the measurement
    assert shown[-1][COURSE].get("basis", "measured") == (basis or ["measured"])[0]
    assert shown[-1].keys() == {"text/html", "text/plain", COURSE}
    assert shown[-1]["text/plain"] == f"Your prediction\n{text}"
    assert text in unescape(shown[-1]["text/html"])


def test_the_first_line_of_every_html_is_no_tag_and_that_of_a_reveal_gives_nothing_away(shown):
    """JupyterLab shows it where the outputs are folded."""
    predict("Is a < b?", ["yes", "no"]).reveal("yes")
    check("slope", lambda f, w, h: None)
    recall(("When?", "Now."))
    lines = [bundle["text/html"].split("\n")[0] for bundle in shown]
    assert lines == [" ", "Your prediction", " ", " ", " "]


@pytest.mark.parametrize(
    ("choice", "fold", "says"),
    [
        (None, "<details style", "What was measured, and why"),
        ("4", "<details open ", "Right. You predicted “4”"),
        ("1", "<details open ", "Not quite. You predicted “1”; measured: 4."),
    ],
)
def test_a_reveal_that_explains_itself_is_a_fold_which_a_choice_opens(shown, choice, fold, says):
    figure = plt.figure(figsize=(3, 2))
    guess = predict("How many times?", [1, 4])
    guess._widget.value = choice
    guess.reveal(4, "Four *means* add up: $4g$, see [05](05_windows.ipynb).", figure, 'A "bar" of 4.')
    text = shown[-1]["text/markdown"]
    assert text.startswith(fold)
    assert says in text
    assert "\n\nFour *means* add up: $4g$" in text
    assert '<img width="300" alt="A &quot;bar&quot; of 4." src="data:image/png;base64,iVBOR' in text
    assert 'Figure: A "bar" of 4.' in shown[-1]["text/plain"]
    assert "base64" not in shown[-1]["text/plain"]
    assert shown[-1][COURSE]["because"].startswith("Four *means*")


@pytest.mark.parametrize("measured", [5, None, [], [1, 4]])
def test_what_was_measured_must_be_one_of_the_options(shown, measured):
    guess = predict("How many times?", [1, 4])
    with pytest.raises(ValueError, match="none of the options"):
        guess.reveal(measured)
    assert len(shown) == 1


# check


@pytest.mark.parametrize(
    ("answer", "bug", "beginning"),
    [
        (lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h), "", "Right. "),
        (lambda f, w, h: (f(w + h) - f(w)) / h, "wrong-value", "Not yet right (wrong-value). w² at "),
        (lambda f, w, h: None, "not-attempted", "Not done yet. Your function "),
    ],
    ids=["right", "wrong", "untouched"],
)
def test_a_check_shows_the_verdict_and_returns_it(shown, answer, bug, beginning):
    verdict = check("slope", answer)
    assert verdict.bug == bug
    (bundle,) = shown
    assert bundle["text/plain"].startswith(beginning)
    assert bundle["text/plain"].endswith(verdict.message[1:])
    assert bundle["text/html"].startswith(" \n<div")


def test_a_prediction_that_did_not_come_true_is_not_called_right(shown):
    report = {"judged": True, "findings": [{"rule": "token-weights", "level": "error"}]}
    check("own_script", ("none", (1, "", False), report))
    text = "Done. You predicted none, the auditor found token-weights (error), which is something else"
    assert shown[-1]["text/plain"].startswith(text)


def test_the_hint_of_a_bug_is_in_a_fold_and_in_json_but_not_in_the_text(shown):
    verdict = check("slope", lambda f, w, h: (f(w + h) - f(w)) / h)
    (bundle,) = shown
    folded = f'Hint</summary><div style="padding:0.3em 0 0 1.1em">{verdict.hint}</div>'
    assert verdict.hint == bundle[COURSE]["hint"] in bundle["text/html"].partition(folded)[1]
    assert verdict.hint not in bundle["text/plain"]


def test_what_an_answer_prints_is_in_a_fold(shown, capsys):
    def slope(f, w, h):
        print("w <is>", w)
        print("to stderr", file=sys.stderr)
        return 0.0

    check("slope", slope)
    assert capsys.readouterr() == ("", "")
    assert ">w &lt;is&gt; -1.5\nto stderr</pre>" in shown[0]["text/html"].partition("What your code printed")[2]
    assert "to stderr" not in shown[0]["text/plain"]


def test_what_a_terminal_would_obey_is_not_shown(shown):
    loud = ValueError("\x1b[1mbold\x00")

    def slope(f, w, h):
        print("\x1b[1;31mred\x1b[0m\tand\x07 loud")
        raise loud

    assert "\x1b[1mbold" in check("slope", slope).message
    (bundle,) = shown
    shown_as = bundle["text/html"] + bundle["text/plain"]
    assert [character for character in shown_as if not character.isprintable() and character not in "\t\n"] == []
    assert ">red\tand loud</pre>" in bundle["text/html"]
    assert bundle["text/plain"].endswith("ValueError: bold")


def test_code_in_a_verdict_is_shown_as_code(monkeypatch):
    bundles = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw, metadata=None: bundles.append(bundle))

    def slope(f, w, h):
        return f(w) < "text"

    check("slope", slope)
    line = slope.__code__.co_firstlineno + 1
    assert f"Line {line}, <code>return f(w) &lt; &quot;text&quot;</code>: TypeError: " in bundles[0]["text/html"]


def test_every_output_says_in_json_what_it_is(shown, score):
    def right(f, w, h):
        return (f(w + h) - f(w - h)) / (2 * h)

    guess = predict("Which?", [1, "two"])
    guess.reveal("two")
    passed, failed = check("slope", right), check("slope", lambda f, w, h: -right(f, w, h))
    recall(("When?", "Now."), ("Why?", "Because."))
    verdict = {"kind": "verdict", "exercise": "slope", "passed": True, "bug": "", "message": passed.message}
    wrong = {"passed": False, "bug": "wrong-value", "message": failed.message, "hint": failed.hint}
    assert [bundle[COURSE] for bundle in shown] == [
        {"kind": "prediction", "question": "Which?", "options": ["1", "two"]},
        {"kind": "reveal", "question": "Which?", "measured": "two"},
        verdict,
        verdict | wrong,
        {"kind": "cards", "cards": [["When?", "Now."], ["Why?", "Because."]]},
        {"kind": "score"},
    ]


# recall and progress


@pytest.fixture
def score(monkeypatch):
    """What the progress line says, from the beginning of a notebook on."""
    for name, empty in {"_guesses": {}, "_exercises": {}, "_cards": [], "_line": None}.items():
        monkeypatch.setattr(ask, name, empty)
    return ask._score


def test_cards_fold_their_answers_away(shown, score):
    recall(("When is x < 0?", "Never & always."), ("Why?", "Because."))
    cards, line = shown
    assert cards["text/html"].count("<details") == 2
    assert ">When is x &lt; 0?</summary>" in cards["text/html"]
    assert "Never &amp; always." in cards["text/html"]
    assert cards["text/plain"] == "Q: When is x < 0?\nA: Never & always.\nQ: Why?\nA: Because."
    assert WIDGET in cards
    assert "0 of 2 cards known" in line["text/plain"]
    assert WIDGET in line


def test_the_progress_line_counts_along(score, monkeypatch):
    boxes = []
    monkeypatch.setattr(ask, "show_html", lambda *static, widget=None, **_: boxes.append(widget))
    recall(("When?", "Now."), ("Why?", "Because."))
    (_, line), (first, second) = boxes, boxes[0].children

    guess, other = (predict(question, ["a", "b"]) for question in ("Which?", "Who?"))
    guess._widget.value = "a"
    guess.reveal("a")
    other._widget.value = "a"
    other.reveal("b")
    assert "So far here: 1 of 2 predictions right, 0 of 0 exercises passed, 0 of 2 cards known." in line.value
    check("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h), scored=False)  # the solution isn't counted
    check("slope", lambda f, w, h: 0.0)
    assert "0 of 1 exercises passed, 0 of 2 cards known." in line.value
    check("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h))
    check("slope", lambda f, w, h: 0.0)  # what was once passed stays so
    first.children[1].value = second.children[1].value = True
    assert "1 of 1 exercises passed, 2 of 2 cards known." in line.value
    second.children[1].value = False
    assert "1 of 2 cards known." in line.value
    recall(("When?", "Now."))  # dealt again, they are not known yet
    assert "0 of 1 cards known." in score()


@pytest.mark.parametrize(
    ("chosen", "revealed", "options", "kept"),
    [
        ("a", False, ["a", "b"], "a"),  # Shift+Enter after a click asks again
        (None, False, ["a", "b"], None),
        ("a", True, ["a", "b"], None),
        ("a", False, ["b", "c"], None),
    ],
)
def test_a_question_that_is_asked_again_keeps_a_choice_until_it_is_revealed(
    shown, score, chosen, revealed, options, kept
):
    guess = predict("Which?", ["a", "b"])
    guess._widget.value = chosen
    if revealed:
        guess.reveal("a")
    again = predict("Which?", options)
    assert again.choice == kept
