"""check as a learner sees it: the verdict in its box, the hint in a fold, and a score that is there after a restart."""

from test_notebooks_in_the_browser import WRONG, line, outputs, places, verdict

LOOP = """from course_utils import windows


def accumulate(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):
        print("a window of", len(window))
        optimizer.zero_grad()
        for batch in window:
            loss_fn(model, batch).backward()
        optimizer.step()


_ = check("accumulate", accumulate)"""
RIGHT_LOOP = LOOP.replace("loss_fn(model, batch).backward()", "(loss_fn(model, batch) * TOTAL).backward()").replace(
    "TOTAL", "(len(batch) / sum(len(other) for other in window))"
)


def test_a_wrong_answer_has_a_hint_that_unfolds_and_its_prints_in_another_fold(lab):
    lab.open("05_windows")
    cells = lab.cells()
    number = places(cells, r"^_ = check\(")[0]
    lab.run_cell(1)
    lab.run_cell(number, LOOP)
    color, text = verdict(lab, number)
    assert color == WRONG
    assert text.startswith("Not yet right (loss-scale). ")
    hint, prints = lab.cell(number).locator(".jp-OutputArea-output details").all()
    for fold, words in ((hint, "should add up to 1"), (prints, "a window of 2")):
        assert words not in fold.inner_text()
        fold.locator("summary").press("Enter")
        assert words in fold.inner_text()
    lab.picture(number, "wrong")
    lab.run_cell(number, LOOP.replace("loss_fn(model, batch).backward()", "loss_fn(model, batch).backwards()"))
    assert "Line 9, loss_fn(model, batch).backwards(): AttributeError: " in verdict(lab, number)[1]
    lab.picture(number, "error")
    endless = LOOP.replace("        optimizer.step()", "        while True:\n            pass")
    lab.run_cell(number, endless.replace("accumulate)", "accumulate, limit=2)"))
    assert "still running" in verdict(lab, number)[1]
    lab.picture(number, "endless")


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
