"""An open experiment in JupyterLab: a learner writes the report and ticks what holds, by mouse and by keyboard."""

COMPLETE = {
    "question": "Does the width change the noise scale?",
    "prediction": "It grows with the width.",
    "measurement": "Three seeds, 88 and 116.",
    "conclusion": "It grew, by a third.",
}


def test_a_complete_report_is_ticked_by_mouse_and_keyboard_and_then_it_is_done(lab):
    lab.open("deeper/noise_scale")
    places = {cell["id"]: place for place, cell in enumerate(lab.cells())}
    stub = places["5e1f0e02"]
    lab.run_cell(
        next(place for place, cell in enumerate(lab.cells()) if "".join(cell["source"]).startswith("# Set-up"))
    )
    source = "".join(lab.cells()[stub]["source"])

    lab.run_cell(stub)
    boxes = lab.cell(stub).locator("input[type=checkbox]")
    boxes.nth(0).wait_for()
    assert boxes.count() == 6
    assert boxes.nth(0).is_disabled()

    for part, text in COMPLETE.items():
        source = source.replace(f'"{part}": ""', f'"{part}": "{text}"')
    lab.run_cell(stub, source)
    boxes.nth(0).check()
    for place in range(1, boxes.count()):
        boxes.nth(place).focus()
        lab.page.keyboard.press("Space")
    lab.cell(stub).get_by_text("Done: your report meets every criterion.").wait_for()
    lab.screenshot("rubric")
    assert not [found for found in lab.ask("overflowing") if found[0] == stub]
    assert not lab.errors
