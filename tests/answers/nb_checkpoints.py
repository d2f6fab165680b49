"""Answers to "train_on": a training function that is killed. The notebook's saves at the end of each window; the one
whose mistakes the exercise itself declares saves after each micro-batch."""

from answers import edited, right, wrong

SAVE = 'torch.save(saved, f"{file}.new")'
RENAMED = f'{SAVE}\n            os.replace(f"{{file}}.new", file)'
BUFFERS = "saved = {name: part.state_dict() for name, part in parts.items()}"
STATES = "part.load_state_dict(saved[name])"
NOT_ALL = "part.load_state_dict(saved[name], **({'strict': False} if part is model else {}))"
DROPPED = "{}\n            for name, _ in model.named_{}(): del saved['model'][name]"
right("train_on")(edited("train_on", (SAVE, 'with open(f"{file}.new", "wb") as opened: torch.save(saved, opened)')))

for bug, says, *changes in (
    ("drops-optimizer", "", ('"optimizer": optimizer, ', "")),
    ("drops-schedule", "", (', "schedule": schedule', "")),
    ("drops-random-numbers", "", ('torch.set_rng_state(saved["random numbers"])', "pass")),
    ("drops-buffers", "", (BUFFERS, DROPPED.format(BUFFERS, "buffers")), (STATES, NOT_ALL)),
    ("drops-parameters", "", (BUFFERS, DROPPED.format(BUFFERS, "parameters")), (STATES, NOT_ALL)),
    ("torn-file", "", (RENAMED, "torch.save(saved, file)")),
    ("loss-scale", "", (" / n)", ")")),
    ("stale-gradients", "", ("            optimizer.zero_grad()\n", "")),
    ("scheduler-cadence", "never steps", ("            schedule.step()\n", "")),
    ("starts-over", "killed in micro-batch 5", ("if os.path.exists(file)", "if False")),
    ("wrong-batches", "", ("done = saved[", "done = 1 + saved[")),
    ("wrong-value", "", ("    done = 0\n", "    done = 0\n    optimizer.param_groups[0]['lr'] /= 2\n")),
    ("raises", "", ("if os.path.exists(file)", "if True")),
):
    wrong("train_on", bug, says)(edited("train_on", *changes))
