"""The exercise of *low precision*: a window of a bfloat16 model, summed in float32 and stepped on float32 copies."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close

LR = 2.0**-10
WINDOWS = (  # for each micro-batch: its samples, and their gradient in the first column
    ((1, 1.0),) * 512,
    ((4, 1.0), (2, 2.0), (2, 3.0)),
    ((2, 1.0), (2, 3.0)),
    ((8, 64.0),),
)
COLUMNS = (1.0, 2.0, 4.0)


class _Model(nn.Module):
    """The gradient of a sample is the sample itself: small integers, which bfloat16 holds exactly."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(len(COLUMNS), dtype=torch.bfloat16))
        self.bias = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))


def _loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The sum of the samples' losses."""
    return (model.weight * batch).sum() + model.bias.sum() * batch[:, 0].sum()


class _Case:
    """One window: the sum and the mean of its gradients, and what the copies held before it."""

    def __init__(self, window: tuple, before: list[Tensor], last: "_Case | None"):
        self.samples = sum(size for size, _ in window)
        self.batches = [torch.tensor([COLUMNS] * size, dtype=torch.bfloat16) * value for size, value in window]
        self.each = [[batch.double().sum(0), batch[:, 0].double().sum(0, keepdim=True)] for batch in self.batches]
        self.total = [sum(gradients) for gradients in zip(*self.each, strict=True)]
        self.mean = [total / self.samples for total in self.total]
        self.before, self.last = before, last

    def after(self, gradient: list[Tensor], start: list[Tensor] | None = None) -> list[Tensor]:
        """What the copies hold after a step with this gradient."""
        pairs = zip(start or self.before, gradient, strict=True)
        return [(held - LR * slope).float() for held, slope in pairs]

    def slips(self) -> Iterator[tuple[str, str, list[Tensor]]]:
        """The bug, how it shows, and what it leaves in the copies."""
        rounded = [held.bfloat16().double() for held in self.before]
        hint = "the copies lose what bfloat16 cannot hold. They are rounded, or set from the model's weights"
        yield "lost-updates", hint, self.after(self.mean, rounded)
        yield "lost-updates", hint, [held.bfloat16().float() for held in self.after(self.mean)]
        for divided in (1, self.samples):
            sums = [torch.zeros_like(total, dtype=torch.bfloat16) for total in self.total]
            for gradients in self.each:
                for held, slope in zip(sums, gradients, strict=True):
                    held += (slope / divided).bfloat16()
            short = [held.double() * divided / self.samples for held in sums]
            yield "low-precision", "the sum of the window has stopped growing", self.after(short)
        yield "loss-scale", f"the sum is not divided by the {self.samples} samples", self.after(self.total)
        hint = "the sum is divided by the number of micro-batches, and the loss is a sum over samples"
        yield "loss-scale", hint, self.after([total / len(self.each) for total in self.total])
        hint = "only the last micro-batch is in the update"
        yield "discarded-gradients", hint, self.after([slope / self.samples for slope in self.each[-1]])
        if self.last is not None:
            hint = "every micro-batch counts twice, as if a hook of an earlier call were still at work"
            yield "leaves-hooks", hint, self.after([2 * slope for slope in self.mean])
            hint = "the update still holds the window before it"
            for old in (self.last.total, [slope * self.samples for slope in self.last.mean]):
                stale = [(now + then) / self.samples for now, then in zip(self.total, old, strict=True)]
                yield "stale-gradients", hint, self.after(stale)


@exercise(
    "bf16_window",
    hints={
        "low-precision": "In which format is the tensor that you add to? Step 1 has one that is wide enough.",
        "lost-updates": "The copies are the weights that count. In which direction does Step 3 copy, and when?",
        "stale-copies": "What does the next forward pass read: the copies, or the model's own weights?",
        "loss-scale": "`loss_fn` gives a sum over samples. What turns the window's sum into its mean?",
        "stale-gradients": "Which of your tensors must be zero, or new, when a window begins?",
        "empty-step": "The optimizer holds the copies. Print their `.grad` just before the step.",
        "leaves-hooks": "Your function runs once per window. What does a hook do that nobody removes?",
        "wrong-format": "The model is to keep its format; only your sums and the copies are float32.",
        "wrong-value": "Take the window with two micro-batches, and print the sum, the divisor and the copies.",
    },
)
def _bf16_window(answer: Callable) -> str:
    model = _Model()
    master = [p.detach().float() for p in model.parameters()]
    optimizer, seen, last = SGD(master, lr=LR), {"steps": 0, "gradients": 0}, None
    expected = [held.double() for held in master]

    def count(what: str) -> Callable:
        return lambda *_: seen.update({what: seen[what] + 1})

    optimizer.register_step_post_hook(count("steps"))
    for p in model.parameters():
        p.register_hook(count("gradients"))
    for k, window in enumerate(WINDOWS, start=1):
        case = _Case(window, expected, last)
        seen.update(steps=0, gradients=0)
        answer(model, list(master), [batch.clone() for batch in case.batches], _loss, optimizer)
        said = f"window {k} of {len(WINDOWS)}, {len(window)} micro-batches, {case.samples} samples"
        _compare(said, case, seen, model, master)
        expected, last = [held.double() for held in case.after(case.mean)], case
    return (
        "512 micro-batches in one window, ragged ones, updates below the rounding step and above it: copies and "
        "weights are those of a float32 sum."
    )


def _compare(said: str, case: _Case, seen: dict[str, int], model: nn.Module, master: list[Tensor]) -> None:
    if not seen["gradients"] and not seen["steps"]:
        raise Mistake("not-attempted", f"{said}: no backward pass and no step has run yet.")
    if not seen["steps"]:
        raise Mistake("leftover-gradients", f"{said}: no step has run.")
    if seen["steps"] > 1:
        raise Mistake("irregular-window", f"{said}: {seen['steps']} steps, one is expected.")
    if any(p.dtype != torch.bfloat16 for p in model.parameters()):
        raise Mistake("wrong-format", f"{said}: a weight of the model is no longer bfloat16.")
    want = case.after(case.mean)
    got = [held.detach() for held in master]
    if not close(got, want):
        if close(got, [held.float() for held in case.before]):
            raise Mistake("empty-step", f"{said}: the step has not moved the float32 copies.")
        for bug, hint, slip in case.slips():
            if close(got, slip):
                raise Mistake(bug, f"{said}: {hint}.")
        shown, right = (float(values[0][0]) for values in (got, want))
        raise Mistake("wrong-value", f"{said}: the first copy holds {shown:.8g}, expected {right:.8g}.")
    if any(not torch.equal(p.detach(), held.bfloat16()) for p, held in zip(model.parameters(), want, strict=True)):
        raise Mistake("stale-copies", f"{said}: the copies are right, but the model's weights are not these, rounded.")
