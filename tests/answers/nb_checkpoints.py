"""Answers to "train_on": a training function that is killed. The notebook's saves at the end of each window."""

from answers import edited, right, wrong

SAVE = 'torch.save(saved, f"{file}.new")'
RENAMED = f'{SAVE}\n            os.replace(f"{{file}}.new", file)'
LOADED = 'done = saved["done"]'
IN_EACH_MICRO_BATCH = (
    ("            saved = {", "        if True:\n            saved = {"),
    ('"done": done}', '"done": done, ".grad": [p.grad for p in model.parameters()]}'),
    (LOADED, f'{LOADED}\n        for p, grad in zip(model.parameters(), saved[".grad"]): p.grad = grad'),
)
right("train_on")(edited("train_on", *IN_EACH_MICRO_BATCH))
right("train_on")(edited("train_on", (SAVE, 'with open(f"{file}.new", "wb") as opened: torch.save(saved, opened)')))

for bug, says, *changes in (
    ("drops-weights", "", ("part.load_state_dict(", "name == 'model' or part.load_state_dict(")),
    ("drops-gradients", "killed in micro-batch 8", IN_EACH_MICRO_BATCH[0]),
    ("drops-buffers", "", (LOADED, f"{LOADED}\n        model[1].reset_running_stats()")),
    (
        "shifted-windows",
        "",
        *IN_EACH_MICRO_BATCH,
        ("done % n", "(done - k) % n"),
        ("    for b", "    k = done\n    for b"),
    ),
    ("drops-optimizer", "", ('"optimizer": optimizer, ', "")),
    ("drops-schedule", "", (', "schedule": schedule', "")),
    ("drops-random-numbers", "", ('torch.set_rng_state(saved["random numbers"])', "pass")),
    ("torn-file", "", (RENAMED, "torch.save(saved, file)")),
    ("scheduler-cadence", "schedule", ("            schedule.step()\n", "")),
    ("starts-over", "killed in micro-batch 4", ("if os.path.exists(file)", "if False")),
    ("wrong-value", "", ("    done = 0\n", "    done = 0\n    optimizer.param_groups[0]['lr'] /= 2\n")),
    ("raises", "", ("if os.path.exists(file)", "if True")),
):
    wrong("train_on", bug, says)(edited("train_on", *changes))
