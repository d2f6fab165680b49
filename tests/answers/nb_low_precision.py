"""Answers to "bf16_window": a bfloat16 model with float32 sums and float32 copies."""

from answers import edited, right, wrong

SUMS = "[torch.zeros_like(copy) for copy in master]"
COPY, STEP = "p.copy_(copy)", "    optimizer.step()\n"
right("bf16_window")(
    edited(
        "bf16_window",
        (SUMS, "[copy.double() * 0 for copy in master]"),
        ("total / samples", "(total / samples).float()"),
    )
)
for bug, says, *changes in (
    ("not-attempted", "", (STEP, "")),
    ("wrong-value", "the copies", ("copy.grad = total / samples", "copy.grad = total")),
    ("wrong-value", "window 1", ("total += p.grad", "total.copy_(total.bfloat16() + p.grad)")),
    ("wrong-value", "window 2", (SUMS, f"optimizer.__dict__.setdefault('sums', {SUMS})")),
    ("wrong-value", "the copies", (COPY, f"copy.copy_(copy.bfloat16()), {COPY}")),
    ("wrong-value", "the copies", (STEP, STEP + STEP)),
    ("wrong-value", "the model's weights", (COPY, "p.data = copy.clone()")),
    ("wrong-value", "the model's weights", (COPY, "pass")),
):
    wrong("bf16_window", bug, says)(edited("bf16_window", *changes))
