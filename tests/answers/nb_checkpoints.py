"""Answers to "train_on", a training that is killed. The notebook's saves after each window."""

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
    ("wrong-value", "killed at the end", ("part.load_state_dict(", "name == 'model' or part.load_state_dict(")),
    ("wrong-value", "killed in micro-batch 6", IN_EACH_MICRO_BATCH[0]),
    ("wrong-value", "", (LOADED, f"{LOADED}\n        model[1].reset_running_stats()")),
    ("wrong-value", "", ("done % n", "(done - k) % n"), ("    for b", "    k = done + 1\n    for b")),
    ("wrong-value", "", ('"optimizer": optimizer, ', "")),
    ("wrong-value", "", (', "schedule": schedule', "")),
    ("wrong-value", "", ('torch.set_rng_state(saved["random numbers"])', "pass")),
    ("wrong-value", "killed at the end", ("            schedule.step()\n", "")),
    ("no-restart", "killed in save 1, then EOFError", (RENAMED, "torch.save(saved, file)")),
    ("wrong-value", "that ran again", ("if os.path.exists(file)", "if False")),
    ("raises", "", ("if os.path.exists(file)", "if True")),
):
    wrong("train_on", bug, says)(edited("train_on", *changes))
