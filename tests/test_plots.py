"""The figures: labelled, the same every time, with a sentence for readers who can't see them."""

from itertools import permutations

import IPython.display
import pytest

from course_utils import plots, record, show
from course_utils.ask import display
from course_utils.record import Event, Trace

TRACE = Trace(
    [
        Event("backward", "SGD", 2.0, 1),
        Event("backward", "Adam", 5.0, 1),
        Event("change", "SGD", 1.0),
        Event("step", "SGD", 1.0, 1),
        Event("zero", "SGD", 0.0),
    ]
)


def windows_of(*sizes, zero=True):
    """A trace of windows of these sizes; each backward pass adds 1."""
    events, held = [], 0
    for size in sizes:
        for _ in range(size):
            held += 1
            events.append(Event("backward", "SGD", float(held), held))
        events.append(Event("step", "SGD", float(held), held))
        if zero:
            held = 0
            events.append(Event("zero", "SGD"))
    return Trace(events)


FIGURES = {
    "ledger": lambda: plots.ledger(TRACE),
    "ledgers": lambda: plots.ledgers({"zeroed": windows_of(1, 2), "never": windows_of(1, 1, zero=False)}),
    "curves": lambda: plots.curves({"a": [1, 2, 4], "b": [4, 2, 1]}, [1, 2, 4], "updates", "loss", log="xy"),
    "arrows": lambda: plots.arrows([(1, 0), (0, 1)], (1, 1), (0.5, 0.5)),
    "an early end": lambda: plots.curves(
        {"a": [1, 2], "b": [2, float("nan")]}, [1, 2], "x", "y", ylim=(0, 3), plain=["a"]
    ),
    "shares": lambda: plots.shares({"right": [[0.5, 0.5, 0], [0, 0, 1]], "wrong": [[1, 1, 0]]}, right=0.5),
    "memory_layers": lambda: plots.memory_layers({"one by one": {"kept": [1, 2, 1]}, "all": {"kept": [1, 4e6, 1]}}),
    "error_dots": lambda: plots.error_dots({"all at once": 1e-16, "one by one": 0.3}, 1e-12, "relative error"),
    "rank_timeline": lambda: plots.rank_timeline(
        {"every": [([2, 4], [1, 1]), ([2, 4], [1, 1])], "the last": [([1, 4], [0, 1]), ([3, 4], [0, 1])]}
    ),
}


def texts(axis):
    return [text.get_text() for text in axis.texts if text.get_text()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_drawn_and_has_a_labelled_axis(name):
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    assert figure.axes[-1].get_xlabel()


def test_backward_passes_draws_an_arrow_for_each_flow_also_where_two_join_the_same_values():
    positions = {"a": (0, 0), "h": (3, 0), "loss": (6, 0)}
    calls = {
        "first": ([("loss", "h", "9"), ("h", "a", "2"), ("h", "a", "0.5")], {"a": ".grad = 18"}),
        "second": ([("loss", "a", "3")], {"a": ".grad = 21"}),
    }
    first, second = plots.backward_passes(positions, calls).axes
    assert [text for text in texts(first) if text] == ["9", "2", "0.5", "a", ".grad = 18", "h", "loss"]
    assert "3" in texts(second)
    assert [axis.get_title(loc="left") for axis in (first, second)] == ["first", "second"]
    heights = {text.get_text(): text.get_position()[1] for text in first.texts if text.get_text() in ("9", "2", "0.5")}
    assert heights["9"] == 0, "straight"
    assert heights["2"] == -heights["0.5"] != 0, "one bends up, the other down"


def test_dials_write_the_outcome_of_each_loop_beside_its_place_for_zero_and_count_those_that_train():
    outcomes = {}
    for order in map("".join, permutations("zfbs")):
        outcomes[order] = "trains" if "bs" in order * 2 else "moves" if "sb" in order * 2 else "stands"
    first, second = plots.dials(outcomes, good="trains").axes
    assert [axis.get_title(loc="left") for axis in (first, second)] == [
        "clockwise: forward, backward, step", "clockwise: forward, step, backward"
    ]  # fmt: skip
    assert [texts(axis)[-1] for axis in (first, second)] == ["8 of 12\ntrain", "0 of 12\ntrain"]
    assert texts(first)[:6] == [
        "forward", "zero", "trains\nfzbs zbsf\nbsfz sfzb", "backward", "zero", "stands\nfbzs bzsf\nzsfb sfbz"
    ]  # fmt: skip
    assert {order for text in texts(first) + texts(second) for order in text.split()} >= {*outcomes}
    styles = [patch.get_linestyle() for patch in first.patches]
    assert styles == ["-", ":", "-"], "the gap is one band, from step to backward"


def test_the_ledger_draws_chosen_lanes_in_their_order_and_under_their_names():
    assert [axis.get_title(loc="left") for axis in plots.ledger(TRACE).axes] == ["SGD", "Adam"]
    figure = plots.ledger(TRACE, lanes={"Adam": "critic", "SGD": "generator"})
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["critic", "generator"]
    assert [len(axis.patches) > 0 for axis in figure.axes] == [True, True]


def columns(axis):
    """The numbers in the blocks of each column, from the bottom, and what stands below it."""
    found = {}
    for text in axis.texts:
        x, y = text.get_position()
        found.setdefault(x, ([], []))[y < 0].append(int(text.get_text()))
    return [(blocks, *below) for _, (blocks, below) in sorted(found.items())]


def test_the_ledger_holds_the_numbers_of_backward_calls_and_each_step_says_how_many_it_reads():
    zeroed, never = FIGURES["ledgers"]().axes
    assert columns(zeroed) == [([1],), ([1], 1), ([2],), ([2, 3],), ([2, 3], 2)]  # where it zeroes there is no number
    assert columns(never) == [([1],), ([1], 1), ([1, 2],), ([1, 2], 2)]
    assert [axis.get_title(loc="left") for axis in (zeroed, never)] == ["zeroed", "never"]
    empty = [patch for patch in zeroed.patches if not patch.get_fill() and patch.get_zorder() < 3]
    assert [patch.get_x() + patch.get_width() / 2 for patch in empty] == [2, 6]
    frames = [patch for patch in zeroed.patches if patch.get_zorder() == 3]
    assert [patch.get_height() for patch in frames] == [1, 2]


def test_a_block_has_one_size_in_all_panels():
    figure = plots.ledgers({"low": windows_of(1), "high": windows_of(5)})
    figure.draw_without_rendering()
    low, high = (axis.patches[0].get_window_extent().size for axis in figure.axes)
    assert low == pytest.approx(high, rel=0.02)


@pytest.mark.parametrize("draw", [plots.ledger, lambda trace: plots.ledgers({"": trace})], ids=["ledger", "ledgers"])
def test_the_ledger_of_a_trace_without_events_is_an_error(draw):
    with record() as trace:
        pass
    with pytest.raises(ValueError, match="no events to draw"):
        draw(trace)


def test_curves_pass_through_the_numbers_that_are_given():
    (axis,) = FIGURES["curves"]().axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axis.lines}
    assert drawn == {"a": [[1, 1], [2, 2], [4, 4]], "b": [[1, 4], [2, 2], [4, 1]]}


def test_arrows_lead_from_head_to_tail_and_the_sum_and_the_mean_from_the_origin():
    (axis,) = plots.arrows([(1, 0), (2, 4)], (3, 4), (1.5, 2)).axes
    arrows = [(*text.xyann, *text.xy) for text in axis.texts if not text.get_text()]
    assert arrows == [(0, 0, 1, 0), (1, 0, 3, 4), (0, 0, 3, 4), (0, 0, 1.5, 2)]


def test_the_names_of_lines_stand_in_the_order_in_which_they_end():
    figure = plots.curves({"a": [4, 1], "a long name of two lines": [2, 3], "b": [3, 2]}, [0, 1], "x", "y")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a long name of two\nlines", "b", "a"]


def test_shares_are_written_into_their_cells_and_shade_them():
    right, wrong = FIGURES["shares"]().axes
    cells = {axis: [text for text in texts(axis) if text != "update"] for axis in (right, wrong)}
    assert cells == {right: ["0.5", "0.5", "1"], wrong: ["1", "1"]}
    assert right.images[0].get_array().tolist() == [[0.5, 0.5, None], [None, None, 1]]
    assert right.images[0].get_clim() == wrong.images[0].get_clim() == (0, 1.1)


def test_shares_can_say_what_each_row_adds_up_to():
    (axis,) = plots.shares({"tail": [[0.5, 0.5, 0], [0, 0, 0.5]]}, right=0.5, sums=True).axes
    assert texts(axis)[-4:] == ["update", "1", "0.5", "sum"]
    (almost,) = plots.shares({"rounded": [[0.172, 0.828 + 1e-9]]}, right=0.5, sums=True).axes
    assert not [text for text in almost.texts if text.get_weight() == "bold"], "it is written as 1"
    bold = {text.get_text() for text in axis.texts if text.get_weight() == "bold"}
    assert bold == {"0.5"}, "a sum that isn't 1 stands out"


def test_pictures_are_square_with_a_title_each():
    figure = plots.image_row([[0, 0.5, 1, 0], [1, 0, 0, 0]], [7, 3])
    assert [axis.get_title() for axis in figure.axes] == ["7", "3"]
    assert figure.axes[0].images[0].get_array().tolist() == [[0, 0.5], [1, 0]]


def test_the_layers_say_their_peak():
    one, every = FIGURES["memory_layers"]().axes
    assert [axis.get_title(loc="left") for axis in (one, every)] == ["one by one", "all"]
    assert [axis.get_title(loc="right") for axis in (one, every)] == ["peak 2 B", "peak 4 MB"]
    assert one.get_ylabel() == every.get_ylabel() == "bytes held"
    assert one.get_ylim() == every.get_ylim()
    assert (every.get_ylim()[0], every.get_ylim()[1] > 4e6) == (0, True)
    (area,) = every.collections
    assert area.get_paths()[0].get_extents().get_points().tolist() == [[0, 0], [2, 4e6]]


def test_errors_have_one_mark_below_the_limit_and_another_above_it_and_draw_zero():
    axis = plots.error_dots({"none": 0.0, "rounding": 1e-16, "wrong": 0.3}, 1e-12, "relative error").axes[0]
    assert [line.get_marker() for line in axis.lines[:3]] == ["o", "o", "s"]
    assert [float(line.get_xdata()[0]) for line in axis.lines[:3]] == [1e-17, 1e-16, 0.3]
    assert axis.get_xscale() == "log"


def test_show_gives_an_image_a_text_and_an_alternative(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **options: shown.append((bundle, options)))
    figure = FIGURES["curves"]()
    show(figure, "Two lines cross.")
    ((bundle, options),) = shown
    assert bundle == {"image/png": display.png(figure), "text/plain": "Figure: Two lines cross."}
    assert options == {"raw": True, "metadata": {"image/png": {"width": 750, "alt": "Two lines cross."}}}


def test_the_lanes_of_ranks_are_joined_where_gradients_are_averaged():
    every, first = plots.rank_timeline(
        {"every": [([2, 4], [1, 3]), ([2, 4], [1, 3])], "first": [([2, 3], [1, 0]), ([2, 5], [1, 0])]}
    ).axes
    assert texts(every) == ["2", "4", "2", "4"]
    arrows = {axis: [text.xy for text in axis.texts if not text.get_text()] for axis in (every, first)}
    assert arrows == {every: [(0.35, 0.75), (1.35, 0.75)], first: [(0.35, 0.75)]}
    assert [axis.get_title(loc="right") for axis in (every, first)] == ["4 all-reduces", "1 all-reduce"]
    assert [line.get_marker() for axis in (every, first) for line in axis.lines] == ["D", "D", "D", "X"]


def test_brackets_are_around_what_runs_another_number_of_times():
    source = ["for x in xs:", "    if x:  # not 0", "        x *= 2", "    for _ in x:", "        f()"]
    lines = list(zip(source, [4, 3, 3, 9, 6], strict=True))
    (axis,) = plots.brackets(lines, {3: "each x"}).axes
    assert texts(axis) == ["for x in xs:", "each x", "if x:", "x *= 2", "for _ in x:", "6 times", "f()"]
    assert [box.get_y() for box in axis.patches] == [1, 4]
