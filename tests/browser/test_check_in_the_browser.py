"""check as a learner sees it: what was passed is there after a restart."""

from test_notebooks_in_the_browser import line, outputs, places, verdict

RIGHT_LOOP = """from course_utils import windows


def accumulate(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        optimizer.zero_grad()
        total = sum(map(len, window))
        for batch in window:
            (loss_fn(model, batch) * (len(batch) / total)).backward()
        optimizer.step()


_ = check("accumulate", accumulate)"""


def test_what_was_passed_is_there_after_a_restart(lab):
    lab.open("05_windows")
    cells = lab.cells()
    number, stub = places(cells, r"^_ = check\(")[0], "".join(cells[places(cells, r"^_ = check\(")[0]]["source"])
    lab.run_cell(1)
    lab.run_cell(number, RIGHT_LOOP)
    assert verdict(lab, number)[1].startswith("Right. ")
    lab.page.evaluate("window.course.panel().sessionContext.session.kernel.restart()")
    lab.page.wait_for_function("window.course.ready()", timeout=60_000)
    lab.run_cell(1)
    lab.run_cell(number, stub)
    assert verdict(lab, number)[1].startswith("Not done yet. ")
    lab.run_cell(places(cells, r"^(recall|progress)\(")[0])
    assert "exercises 1 passed of 1 tried (1 set)" in line(lab, cells)
    assert not any(output["output_type"] == "error" for output in outputs(lab, number))
