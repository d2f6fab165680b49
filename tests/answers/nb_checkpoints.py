"""Answers to "train_on": a training function that is killed. The notebook's saves at the end of each window; the one
whose mistakes the exercise itself declares saves after each micro-batch."""

from answers import edited, right, wrong

SAVE = 'torch.save(saved, f"{file}.new")'
RENAMED = f'{SAVE}\n            os.replace(f"{{file}}.new", file)'
right("train_on")(edited("train_on", (SAVE, 'with open(f"{file}.new", "wb") as opened: torch.save(saved, opened)')))

for bug, says, *changes in (
    ("drops-optimizer", "", ('"optimizer": optimizer, ', "")),
    ("drops-schedule", "", (', "schedule": schedule', "")),
    ("drops-random-numbers", "", ('torch.set_rng_state(saved["random numbers"])', "pass")),
    ("torn-file", "", (RENAMED, "torch.save(saved, file)")),
    ("scheduler-cadence", "never steps", ("            schedule.step()\n", "")),
    ("starts-over", "killed in micro-batch 4", ("if os.path.exists(file)", "if False")),
    ("wrong-value", "", ("    done = 0\n", "    done = 0\n    optimizer.param_groups[0]['lr'] /= 2\n")),
    ("raises", "", ("if os.path.exists(file)", "if True")),
):
    wrong("train_on", bug, says)(edited("train_on", *changes))
