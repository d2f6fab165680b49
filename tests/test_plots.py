"""The figures: labelled, the same every time, and shown with a sentence for readers who cannot see them."""

from itertools import accumulate, combinations, pairwise

import IPython.display
import pytest
import torch
from matplotlib.path import Path
from matplotlib.text import Text
from torch import nn

from course_utils import plots, record, show
from course_utils.plots import look
from course_utils.practice import display
from course_utils.recording.trace import Event, Trace

TRACE = Trace(
    [
        Event("forward", "SGD", 0.0),
        Event("backward", "SGD", 2.0),
        Event("forward", "Adam", 0.0),
        Event("backward", "Adam", 5.0),
        Event("change", "SGD", 1.0),
        Event("step", "SGD", 1.0),
        Event("zero", "SGD", 0.0),
    ]
)


def windows_of(*sizes, zero=True, left=0):
    """A trace of windows of these sizes; each backward pass adds 1."""
    events, held = [], 0
    for window, size in enumerate((*sizes, *[left] * bool(left)), start=1):
        for _ in range(size):
            events.append(Event("forward", "SGD", float(held), held, window))
            held += 1
            events.append(Event("backward", "SGD", float(held), held, window))
        events.append(Event("step", "SGD", float(held), held, window))
        if zero:
            held = 0
            events.append(Event("zero", "SGD", 0.0, 0, window))
    return Trace(events[: len(events) - 2 * bool(left)])


FIGURES = {
    "ledger": lambda: plots.ledger(TRACE, title="Two lanes"),
    "ledgers": lambda: plots.ledgers({"one": windows_of(2), "two": windows_of(1, 1)}),
    "curves": lambda: plots.curves({"a": [1, 2, 4], "b": [4, 2, 1]}, [1, 2, 4], "updates", "loss", log="xy"),
    "arrows": lambda: plots.arrows([(1, 0), (0, 1)], (1, 1), (0.5, 0.5)),
    "shares": lambda: plots.shares({"right": [[0.5, 0.5, 0], [0, 0, 1]], "wrong": [[1, 1, 0]]}, right=0.5),
    "layers": lambda: plots.layers({"one by one": {"kept": [1, 2, 1]}, "all": {"kept": [1, 4e6, 1]}}),
    "errors": lambda: plots.errors({"all at once": 1e-16, "one by one": 0.3}, 1e-12, "relative error"),
    "blocks": lambda: plots.blocks([2, 6], [2.0, 0.5], ["go", "accumulate"], "tokens", "weight"),
    "bars": lambda: plots.bars({"all at once": 4096, "one by one": 1024}, "bytes"),
    "silhouettes": lambda: plots.silhouettes(
        {"never divides": (windows_of(2, zero=False), windows_of(2), 2)}, columns=1
    ),
    "ranks": lambda: plots.ranks({"nothing held": [[1, 1], [1, 1]], "all but the last": [[0, 1], [0, 1]]}),
}


def texts(axis):
    return [text.get_text() for text in axis.texts if text.get_text()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_axis_is_labelled(name):
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    axes = figure.axes
    assert axes[-1].get_xlabel()
    for axis in axes:
        named = [label.get_text() for label in axis.get_yticklabels()] + texts(axis)
        shared = axis.get_shared_y_axes().joined(axis, axes[0]) or axis.get_shared_y_axes().joined(axis, axes[-1])
        assert axis.get_ylabel() or {"all at once", "update", "stage 0", "rank 0"} & {*named} or shared


def test_the_same_figure_gives_the_same_bytes():
    first, second = display.png(FIGURES["ledger"]()), display.png(FIGURES["ledger"]())
    assert first.startswith(b"\x89PNG")
    assert first == second


def test_backward_passes_writes_what_flows_and_joins_the_flows_along_one_edge():
    places = {"a": (0, 0), "h": (1, 1), "loss": (2, 0)}
    calls = {
        "first": ([("loss", "h", 9.0), ("loss", "h", 9.0), ("h", "a", 0.5)], {"h": "18", "a": ".grad: 9"}),
        "second": ([("loss", "a", 3.0)], {"a": ".grad: 12"}),
    }
    first, second = plots.backward_passes(places, calls, leaves=["a"]).axes
    assert texts(first) == [
        "9 + 9", "0.5", "a", "h", "loss", "18", "lasts for this call", ".grad: 9", "stays after the call",
    ]  # fmt: skip
    assert "3" in texts(second)
    assert [axis.get_title(loc="left") for axis in (first, second)] == ["first", "second"]
    assert len(first.lines) == len(second.lines) == 3, "each panel has the edges of all calls"
    boxes = [text for text in first.texts if text.get_text() in ("18", ".grad: 9")]
    frames = {text.get_text(): text.get_bbox_patch().get_linestyle() for text in boxes}
    assert frames == {"18": "--", ".grad: 9": "-"}


def test_orders_writes_the_letters_and_draws_a_band_from_backward_to_step_also_around_the_end():
    (axis,) = plots.orders(
        [["zfbs", "szfb"], ["fbzs"]], {"zfbs": "trains", "szfb": "trains", "fbzs": "stands still"}, "key"
    ).axes
    assert texts(axis) == [*"zfbsszfb", "trains", *"fbzs", "stands still"]
    assert axis.get_title(loc="left") == "key"
    lengths = [round(abs(line.get_xdata()[1] - line.get_xdata()[0]) / 0.2, 2) for line in axis.lines]
    assert lengths == [1.7, 1.1, 1.1, 2.7], "one that goes round has two pieces; a longer one holds what comes between"
    good, _, _, bad = [line.get_color() for line in axis.lines]
    assert good != bad


def test_the_ledger_draws_the_norms_of_each_lane_where_its_events_are():
    sgd, adam = plots.ledger(TRACE).axes
    assert sgd.get_ylabel().startswith("SGD")
    assert sgd.lines[0].get_xdata().tolist() == [0, 1, 4, 5, 6]
    assert sgd.lines[0].get_ydata().tolist() == [0, 2, 1, 1, 0]
    assert adam.lines[0].get_xdata().tolist() == [2, 3]
    marks = {marks.get_label(): marks.get_offsets().tolist() for marks in sgd.collections}
    assert marks["backward: adds"] == [[1, 2]]
    assert marks["changed in place"] == [[4, 1]]
    assert marks["step: reads"] == [[5, 1]]
    assert marks["zeroed"] == [[6, 0]]


def test_the_ledger_draws_chosen_lanes_in_their_order_and_under_their_names():
    figure = plots.ledger(TRACE, lanes={"Adam": "critic", "SGD": "generator"})
    assert [axis.get_ylabel().split("\n")[0] for axis in figure.axes] == ["critic", "generator"]
    assert [len(axis.lines[0].get_xdata()) for axis in figure.axes] == [2, 5]


def test_a_note_is_above_its_event_and_above_everything_else_in_the_lane():
    sgd, adam = plots.ledger(TRACE, notes={5: "stale-gradients"}).axes
    (note,) = [text for text in sgd.texts if text.get_text() == "stale-gradients"]
    x, y = note.get_position()
    assert x == 5
    assert y > 2.0
    assert sgd.lines[-1].get_xydata()[0].tolist() == [5, 1]
    assert "stale-gradients" not in texts(adam)


def numbers_and_shades(axis):
    brackets = [line for line in axis.lines if line.get_gid() == "window"]
    spans = [(min(line.get_xdata()) + 0.35, max(line.get_xdata()) - 0.35) for line in brackets]
    words = [text for text in texts(axis) if text != "window"]
    shades = [(shade.get_x() + 0.5, shade.get_x() + shade.get_width() - 0.5) for shade in axis.patches]
    return dict(zip(words, [tuple(map(round, span)) for span in spans], strict=True)), shades


def test_the_ledger_numbers_its_windows_and_shades_its_updates():
    (axis,) = plots.ledger(windows_of(2, 1)).axes  # f b f b S z  f b S z
    assert numbers_and_shades(axis) == ({"1": (0, 3), "2": (6, 7)}, [(4, 5), (8, 9)])


def test_a_clip_before_the_step_belongs_to_the_update_and_one_between_two_passes_to_the_window():
    kinds = ["backward", "change", "backward", "change", "step", "zero"]
    (axis,) = plots.ledger(Trace([Event(kind, "SGD", 1.0, 1, window=1) for kind in kinds])).axes
    assert numbers_and_shades(axis) == ({"1": (0, 2)}, [(3, 5)])


def test_windows_without_zeroing_and_steps_without_a_pass_are_numbered_too():
    (axis,) = plots.ledger(windows_of(1, 1, zero=False)).axes
    assert numbers_and_shades(axis) == ({"1": (0, 1), "2": (3, 4)}, [(2, 2), (5, 5)])
    kinds = {"backward": 1, "step": 1, "another step": 2}
    (axis,) = plots.ledger(
        Trace([Event(kind.split()[-1], "SGD", 1.0, 1, window) for kind, window in kinds.items()])
    ).axes
    assert numbers_and_shades(axis) == ({"1": (0, 0), "2": (2, 2)}, [(1, 1), (2, 2)])


def test_a_window_that_no_step_follows_is_dashed_and_says_so():
    (axis,) = plots.ledger(windows_of(2, left=1)).axes
    windows, shades = numbers_and_shades(axis)
    assert windows == {"1": (0, 3), "no update": (6, 7)}
    assert shades == [(4, 5)]
    assert [line.get_linestyle() for line in axis.lines if line.get_gid() == "window"] == ["-", "--"]


def test_a_part_of_a_ledger_keeps_the_numbers_of_its_windows():
    trace = windows_of(1, 1, 1)
    (axis,) = plots.ledger(trace, part=range(6, 12), notes={2: "stale", 10: "late"}).axes
    assert texts(axis) == ["2", "3", "window", "late"]
    assert [shade.get_x() for shade in axis.patches] == [5.5, 9.5]
    assert axis.get_xlim() == (5, 12)


def test_ledgers_of_several_loops_have_one_scale_and_their_own_windows():
    low, high = plots.ledgers({"low": windows_of(1, 1), "high": windows_of(3)}).axes
    assert low.get_ylim() == high.get_ylim()
    assert [numbers_and_shades(axis)[0] for axis in (low, high)] == [{"1": (0, 1), "2": (4, 5)}, {"1": (0, 5)}]
    assert [axis.get_title(loc="left") for axis in (low, high)] == ["low", "high"]


def test_counts_have_whole_numbers_on_the_axis():
    axis = plots.ledger(Trace([Event("backward", "SGD", held=k) for k in range(1, 13)])).axes[0]
    assert all(float(tick).is_integer() for tick in axis.get_yticks())


def test_the_ledger_explains_each_mark_once():
    (legend,) = plots.ledger(TRACE).legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert sorted(labels) == ["backward: adds", "changed in place", "forward", "step: reads", "zeroed"]


def test_the_ledger_of_a_trace_without_events_is_an_error():
    with record() as trace:
        pass
    with pytest.raises(ValueError, match="no events to draw"):
        plots.ledger(trace)


def test_the_ledger_of_an_unknown_lane_is_an_error():
    with pytest.raises(ValueError, match="no lane 'AdamW'"):
        plots.ledger(TRACE, lanes={"AdamW": "AdamW"})


def test_the_ledger_of_gradients_that_overflow_can_be_drawn():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as trace:
        (model(torch.ones(1, 2)).sum() * 3).backward()
        (model(torch.ones(1, 2)).sum() * float("inf")).backward()
        optimizer.step()
    (axis,) = plots.ledger(trace).axes
    assert axis.get_ylim()[1] == pytest.approx(1.12 * 27**0.5)


def test_a_long_line_of_curves_has_few_markers_and_one_line_no_legend():
    figure = plots.curves({"loss": list(range(100))}, list(range(100)), "updates", "loss", ylim=(0, 50))
    (axis,) = figure.axes
    assert axis.get_ylim() == (0, 50)
    assert axis.lines[0].get_markevery() == 8
    assert axis.get_legend() is None


def named(figure):
    """By its text, where each label stands, and the line's end to which it leads."""
    (axis,) = figure.axes
    return {text.get_text(): (text.get_position()[1], text.xy[1]) for text in axis.texts if text.get_text()}


def test_each_line_has_its_name_at_its_end_and_no_two_names_touch():
    figure = plots.curves({"a": [4, 1], "b": [3, 1], "a long name of two lines": [2, 4]}, [0, 1], "x", "y")
    assert figure.axes[0].get_legend() is None
    names = named(figure)
    assert [*names] == ["a", "b", "a long name of two\nlines"]
    assert names["a"][1] == names["b"][1] < 0.1, "both end at the bottom"
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without the leader
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    assert all(box.x0 > figure.axes[0].get_window_extent().x1 for box in boxes)
    assert all(box.x1 < figure.bbox.x1 for box in boxes)


def test_lines_of_which_one_ends_early_have_a_legend():
    nan = float("nan")
    figure = plots.curves({"a": [1, nan, nan], "b": [1, 2, 3], "none": [nan] * 3}, [0, 1, 2], "x", "y")
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["a", "b", "none"]
    assert not named(figure)


def test_names_stand_around_the_places_that_they_share():
    assert look.apart([0.5, 0.5, 0.9], [0.1, 0.1, 0.1]) == [0.45, 0.55, 0.9]
    assert look.apart([0.9, 0.5, 0.58], [0.1, 0.2, 0.1]) == [0.9, 0.49, 0.64]


def test_the_letters_of_every_line_are_dark_enough_to_read():
    for color, *_ in look.LOOKS:
        shares = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in look.ink(color)]
        luminance = sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), shares, strict=True))
        assert 1.05 / (luminance + 0.05) >= 4.5, f"{color}: WCAG asks for 4.5 to 1"


def test_a_line_to_compare_with_has_no_markers():
    lines = plots.curves({"a": [1, 2], "limit": [2, 2]}, [0, 1], "x", "y", plain=["limit"]).axes[0].lines
    assert [line.get_marker() for line in lines] == ["o", ""]


def test_lines_differ_in_more_than_colour():
    lines = plots.curves({str(k): [k, k] for k in range(5)}, [0, 1], "x", "y").axes[0].lines
    assert len({line.get_marker() for line in lines}) == len({str(line._dash_pattern) for line in lines}) == 5


def test_shares_are_written_into_the_cells_that_are_used():
    figure = plots.shares({"right": [[0.5, 0.5, 0], [0, 0, 1]]}, right=0.5)
    assert texts(figure.axes[0]) == ["0.5", "0.5", "1", "update"]


def test_a_single_update_needs_no_number():
    figure = plots.shares({"right": [[0.5, 0.5]], "wrong": [[1.0, 1.0]]}, right=0.5)
    assert texts(figure.axes[0]) == ["0.5", "0.5"]
    assert not figure.axes[0].get_yticklabels()


def test_a_weight_is_white_on_a_dark_cell_and_black_on_a_light_one():
    (axis,) = plots.shares({"loop": [[0.25, 0.5, 0.65, 0.75, 1]]}, right=0.5).axes
    written = {text.get_text(): text.get_color() for text in axis.texts}
    assert written["0.75"] == written["1"] == "white"
    assert written["0.25"] == written["0.5"] == written["0.65"] == look.BLACK


def test_shares_can_say_what_each_row_adds_up_to():
    (axis,) = plots.shares({"tail": [[0.5, 0.5, 0], [0, 0, 0.5]]}, right=0.5, sums=True).axes
    assert texts(axis)[-4:] == ["update", "1", "0.5", "sum"]
    (almost,) = plots.shares({"rounded": [[0.172, 0.828 + 1e-9]]}, right=0.5, sums=True).axes
    assert not [text for text in almost.texts if text.get_weight() == "bold"], "it is written as 1"
    bold = {text.get_text() for text in axis.texts if text.get_weight() == "bold"}
    assert bold == {"0.5"}, "a sum that isn't 1 stands out"


def test_tables_of_shares_have_rows_of_one_height_and_one_axis_of_micro_batches():
    one, two = plots.shares({"one": [[1.0, 0.0]], "two": [[1.0, 0.0], [0.0, 1.0]]}, right=1.0).axes
    one.figure.draw_without_rendering()
    heights = [axis.get_window_extent().height for axis in (one, two)]
    assert heights[1] / heights[0] == pytest.approx(2, rel=0.02)
    assert not any(label.get_text() for label in one.get_xticklabels())
    assert [label.get_text() for label in two.get_xticklabels()] == ["1", "2"]


def test_pictures_are_square_with_a_title_each():
    figure = plots.pictures([[0, 0.5, 1, 0], [1, 0, 0, 0]], [7, 3])
    assert [axis.get_title() for axis in figure.axes] == ["7", "3"]
    assert figure.axes[0].images[0].get_array().tolist() == [[0, 0.5], [1, 0]]


def test_a_pixel_of_1_is_black_and_one_of_0_is_white():
    (axis,) = plots.pictures([[0, 0.5, 0.5, 1]], ["7"]).axes
    (image,) = axis.images
    drawn = image.to_rgba(image.get_array())
    assert drawn[0, 0].tolist() == [1, 1, 1, 1]
    assert drawn[1, 1].tolist() == [0, 0, 0, 1]


def test_the_layers_say_their_peak():
    one, every = FIGURES["layers"]().axes
    assert [axis.get_title(loc="left") for axis in (one, every)] == ["one by one", "all"]
    assert [axis.get_title(loc="right") for axis in (one, every)] == ["peak 2e-06 MB", "peak 4 MB"]
    assert one.get_ylabel() == every.get_ylabel() == "MB held"
    assert one.get_ylim() == every.get_ylim() == (0, 4.2)


@pytest.mark.parametrize(("most", "unit"), [(999, "bytes"), (1000, "kB"), (2_404_416, "MB"), (3e9, "GB")])
def test_bytes_are_written_in_a_unit_that_fits(most, unit):
    assert look.in_bytes(most)[1] == unit


def test_bars_have_their_value_at_the_end():
    axis = plots.bars({"few": 1024.0, "many": 4096.0}, "bytes").axes[0]
    assert [text.get_text() for text in axis.texts] == ["1,024", "4,096"]


def test_errors_have_one_mark_below_the_limit_and_another_above_it_and_draw_zero():
    axis = plots.errors({"none": 0.0, "rounding": 1e-16, "wrong": 0.3}, 1e-12, "relative error").axes[0]
    assert [line.get_marker() for line in axis.lines[:3]] == ["o", "o", "s"]
    assert [float(line.get_xdata()[0]) for line in axis.lines[:3]] == [1e-17, 1e-16, 0.3]
    assert axis.get_xscale() == "log"


def test_errors_below_the_limit_are_called_exact_and_those_above_it_not():
    figure = plots.errors({"a": 1e-16, "b": 0.3}, 1e-12, "relative error")
    figure.draw_without_rendering()
    (axis,) = figure.axes
    limit = axis.transData.transform((1e-12, 0))[0]
    boxes = {text.get_text(): text.get_window_extent() for text in axis.texts}
    assert boxes["exact"].x1 < limit < boxes["not exact"].x0


def test_show_gives_an_image_a_text_and_an_alternative(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **options: shown.append((bundle, options)))
    figure = FIGURES["curves"]()
    show(figure, "Two lines cross.")
    ((bundle, options),) = shown
    assert bundle == {"image/png": display.png(figure), "text/plain": "Figure: Two lines cross."}
    assert options == {"raw": True, "metadata": {"image/png": {"width": 750, "alt": "Two lines cross."}}}


def test_blocks_stand_side_by_side_as_wide_and_as_high_as_given():
    (axis,) = plots.blocks([2, 6], [2.0, 0.5], ["go", "accumulate"], "tokens", "weight").axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axis.patches]
    assert bars == [(0, 2, 2.0), (2, 6, 0.5)]
    assert [text.get_text() for text in axis.texts] == ["go", "accumulate"]
    assert axis.get_xlim()[1] > 8, "the last bar's right edge is drawn"


def test_the_dashed_line_of_the_blocks_is_at_height_1():
    (axis,) = FIGURES["blocks"]().axes
    (line,) = axis.lines
    assert [*line.get_ydata()] == [1, 1]
    assert line.get_linestyle() == "--"


@pytest.mark.parametrize("heights", [[4.0, 0.5, 2.0, 0.8], [1.0, 1.0, 1.0, 1.0]])
def test_the_line_of_the_blocks_crosses_no_label(heights):
    figure = plots.blocks([2, 16, 4, 10], heights, ["go", "responsibilities", "zero", "accumulate"], "tokens", "weight")
    figure.draw_without_rendering()
    (axis,) = figure.axes
    (line,) = [line for line in axis.lines if line.get_linestyle() == "--"]
    height = axis.transData.transform((0, line.get_ydata()[0]))[1]
    for text in axis.texts:
        box = text.get_window_extent()
        assert not box.y0 - 1 < height < box.y1 + 1, text.get_text()


def test_no_arrow_crosses_a_label_and_no_two_labels_touch():
    cups = [(3.0, 1.0), (1.0, -3.0), (-2.0, 1.0), (2.0, 5.0)]
    figure = plots.arrows(cups, (4.0, 4.0), (1.0, 1.0))
    figure.draw_without_rendering()
    (axis,) = figure.axes
    labels = {text.get_text(): text.get_window_extent() for text in axis.texts if text.get_text()}
    assert list(labels) == ["$g_1$", "$g_2$", "$g_3$", "$g_4$", "sum", "mean"]
    corners = [(0.0, 0.0), *zip(*(accumulate(column) for column in zip(*cups, strict=True)), strict=True)]
    for start, end in [*pairwise(corners), ((0.0, 0.0), (4.0, 4.0))]:
        arrow = Path(axis.transData.transform([start, end]))
        crossed = [label for label, box in labels.items() if arrow.intersects_bbox(box)]
        assert not crossed, f"the arrow from {start} to {end} crosses {crossed}"
    for (one, box), (other, beside) in combinations(labels.items(), 2):
        assert not box.padded(4).overlaps(beside), f"{one} and {other} stand side by side as if one label"


def test_the_ranks_have_a_bar_after_each_micro_batch_that_is_all_reduced():
    every, last = plots.ranks({"nothing held": [[1, 1], [1, 1]], "all but the last": [[0, 3], [0, 3]]}).axes
    bars = {axis: [(bar.get_x(), bar.get_y() + bar.get_height() / 2) for bar in axis.patches] for axis in (every, last)}
    sent = {axis: [(int(x), rank) for x, rank in bars[axis] if x % 1] for axis in bars}
    assert sent[every] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert sent[last] == [(1, 0), (1, 1)]
    assert texts(last) == ["1", "2", "1", "2"]
    assert [axis.get_title(loc="right") for axis in (every, last)] == ["2 all-reduces", "3 all-reduces"]
    updates = [line.get_xdata()[0] for line in last.lines if line.get_marker() == "D"]
    assert len(updates) == 2
    assert min(updates) > max(x for x, _ in bars[last])


def test_a_silhouette_lies_over_its_fixed_twin_micro_batch_by_micro_batch():
    zeroed_twice = Trace(
        [Event(*event) for event in (("backward", "SGD", 1.0), ("zero", "SGD", 0.0)) * 2] + [Event("step", "SGD", 0.0)]
    )
    figure = plots.silhouettes({"zeroes": (zeroed_twice, windows_of(2, 1), 2), "again": (zeroed_twice,) * 2 + (9,)})
    one, two = figure.axes
    assert [axis.get_title(loc="left") for axis in (one, two)] == ["zeroes", "again"]
    buggy, steps = one.lines
    assert buggy.get_xdata() == pytest.approx([0, 0.5, 1, 1 + 1 / 3, 1 + 2 / 3])
    assert list(buggy.get_ydata()) == [1, 0, 1, 0, 0]
    assert steps.get_xdata() == pytest.approx([1 + 2 / 3])
    (fixed,) = one.collections
    assert fixed.get_datalim(one.transData).y1 == 2, "two micro-batches, and none of the next window"
    assert fixed.get_datalim(one.transData).x1 < 2
