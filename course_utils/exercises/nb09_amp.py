"""The exercises of notebook 09: one window under a GradScaler, and the calls of such a window put in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan

from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils.exercises.judging import Mistake, Seen, agree, compare, exercise, not_attempted, wrong_type
from course_utils.exercises.loop import Case, Loop
from course_utils.source import function

SCALE = 1024.0
FOUR = (2, 2, 2, 2)
SPIKE, LARGE = 64.0, 16.0  # the norm of a window with one is 11 or 2.8, that of others 0.35


def solution(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    samples = sum(len(batch) for batch in window)
    for batch in window:
        loss = loss_fn(model, batch) * (len(batch) / samples)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    made = bool(norm.isfinite() and norm <= skip_norm)
    if made:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    optimizer.zero_grad()
    return made


@dataclass(frozen=True)
class AmpCase(Case):
    """Windows under a scaler.

    Args:
        skip_norm: Above which norm a window is to be left out.
        scaler: The growth interval of a GradScaler; 0 for one that is switched off.
    """

    skip_norm: float = inf
    scaler: int = 2000

    @property
    def may_skip(self) -> bool:
        return self.skip_norm < inf

    def more(self) -> str:
        skips = f", skip_norm = {self.skip_norm:g}" * self.may_skip
        return skips + ", a scaler that is switched off" * (not self.scaler)

    bugs = (
        (
            lambda u: agree(float(u.row.norm()) * SCALE, u.case.max_norm, 1e-3),
            "clip-timing",
            "{0.norms}: it was clipped while it was still scaled",
            "When you clip, is `.grad` scaled? `max_norm` is meant for the true gradient of a whole window.",
        ),
    )


def scaler_for(case: AmpCase) -> GradScaler:
    return GradScaler("cpu", init_scale=SCALE, growth_interval=case.scaler or 2000, enabled=case.scaler > 0)


def watch(answer: Callable, case: AmpCase) -> Seen:
    """Watches window after window, and after each one the scale, the schedule, and what was returned."""
    loop, scaler = Loop(case), scaler_for(case)
    scheduler = ExponentialLR(loop.optimizer, gamma=0.7)
    steps, scales, made = [], [], []
    loop.optimizer.register_step_post_hook(lambda *_: steps.append(scheduler.last_epoch))

    def window(batches: list) -> None:
        tools = loop.optimizer, scaler, scheduler, case.max_norm, case.skip_norm
        before = scaler.get_scale()
        made.append(bool(answer(loop.model, batches, loop.loss_fn, *tools)))
        steps.append(scheduler.last_epoch)
        if loop.k in loop.updates.call or scaler.get_scale() < before:  # after a spike it may stay, or go on growing
            scales.append(f"window {loop.k + 1}: {scaler.get_scale() / before:g} times")

    seen = loop.run(window)
    return seen | {"schedule": steps, "scale": scales, "returned": made}


RAGGED = ((4, 4, 4, 2), (3,), (4, 1, 4), (2, 3), (4, 4, 4, 4), (1, 4))
REAL = {"factors": [(6, nan), (12, 100.0)], "max_norm": 0.5, "skip_norm": 50.0, "real": True}
CASES = [
    AmpCase((FOUR,) * 3, max_norm=10.0),
    AmpCase(((4, 2, 1, 3), (2,), (3, 1)), max_norm=10.0),
    AmpCase((FOUR,) * 3, factors=[(6, LARGE)], max_norm=2.0),
    AmpCase((FOUR,) * 5, factors=[(3, nan), (9, inf), (13, inf)], max_norm=1.0),
    AmpCase((FOUR,) * 4, factors=[(4, SPIKE), (10, LARGE)], max_norm=1.0, skip_norm=8.0),
    AmpCase((FOUR,) * 6, factors=[(0, SPIKE), (5, inf), (15, nan)], max_norm=10.0, skip_norm=8.0, scaler=1),
    AmpCase(((1,), (1,)), factors=[(0, 4.0)], max_norm=10.0, skip_norm=4.0),  # equal is not above
    AmpCase((FOUR,) * 4, factors=[(4, SPIKE), (10, LARGE)], max_norm=1.0, skip_norm=8.0, scaler=0),
    AmpCase((FOUR,) * 5, factors=[(7, nan), (10, LARGE), (13, inf)], max_norm=1.0, scaler=0),  # as for bfloat16
    *(AmpCase(RAGGED, **REAL, **more) for more in ({}, {"adam": True}, {"scaler": 0})),
]
CHANNELS = {
    "schedule": ("scheduler-cadence", "the schedule steps once after each update, and not where none was made",
                 "How does your loop learn whether the step was made? A scale may also grow. And with an infinite "
                 "skip_norm, is an infinite norm above it?"),
    "scale": ("scaler-timing", "each window needs one update(), also one that is left out",
              "A call is missing, or one call comes twice in a window. Which calls does the loop of Step 8 make for a "
              "window that it skips?"),
    "returned": ("wrong-value", "the function returns whether the update was made",
                 "Print what the function returns for a good window, a spike and an infinity."),
}  # fmt: skip


@exercise
def amp_window(answer):
    hints = {
        "skip-rule": "The norm to compare with skip_norm is that of the true gradient: unscaled, and before clipping. "
        "clip_grad_norm_ returns one.",
        "unguarded-step": "Who looks for an infinity or NaN when the scaler is switched off (Step 7)? A number that "
        "you have already computed says it.",
    }
    compare(watch, answer, solution, CASES, CHANNELS, hints)
    return (
        "full, short and ragged windows, clipped or not, infinity, NaN and spikes, a scale that grows, a scaler that "
        "is switched off: every update is that of the large batch, and every window that has to be left out leaves "
        "nothing behind."
    )


# The calls of such a window, to be put in order.

LINES = {  # as the notebook shows them
    "A": "scaler.update()",
    "B": "clip_grad_norm_(model.parameters(), max_norm)",
    "C": "scaler.scale(loss_fn(model, batch) / n).backward()",
    "D": "optimizer.step()",
    "E": "if (i + 1) % n == 0:",
    "F": "scaler.unscale_(optimizer)",
    "G": "optimizer.zero_grad()",
    "H": "for i, batch in enumerate(batches):",
    "I": "scaler.step(optimizer)",
}
ORDER = "GHCEFBIAG"
ORDER_CASES = [
    AmpCase(((1,) * 12,), 4, dirty=True, factors=[(4, 16.0)], max_norm=2.0),
    AmpCase(((1,) * 2,), 1, dirty=True, factors=[(1, 16.0)], max_norm=2.0),
    AmpCase(((1,) * 12,), 4, dirty=True, factors=[(4, inf)], max_norm=2.0),
]


def letters(answer: str | Sequence[str]) -> str:
    """The letters of an answer, such as "B A D", "b, a, d" or ["B", "A", "D"], as "BAD"."""
    if not all(isinstance(part, str) for part in answer):
        raise wrong_type(f"expected letters, such as 'B A D', got {answer!r}.")
    order = "".join(letter for letter in "".join(answer).upper() if letter not in " \t\n,;:.-+>→'\"[]()")
    if not order or set(order) == {"…"}:
        raise not_attempted("there are no letters in your answer yet.")
    if unknown := [letter for letter in order if letter not in LINES]:
        hint = "Write only letters that stand before the lines, such as 'B A'."
        raise Mistake("unknown-line", f"no line is called {unknown[0]!r}, only {', '.join(LINES)}.", hint)
    return order


def assemble(order: str) -> Callable:
    """The loop that the lines make in this order.

    A line that ends in a colon opens a block, and everything after it is inside. So an order needs no indentation.
    """
    if "H" not in order:
        hint = "Which line makes everything after it happen once for each micro-batch?"
        raise Mistake("no-loop", f"no line of {' '.join(order)} repeats anything.", hint)
    if order.count("H") > 1:
        hint = "One pass over the micro-batches is enough: how often does the loop inside the loop run?"
        raise Mistake("nested-loop", "line H opens a second loop inside the first.", hint)
    for early in order.partition("H")[0]:
        if early in "CE":
            name = "batch" if early == "C" else "i"
            hint = "Which line makes `i` and `batch`, and which of your lines comes before it?"
            message = f"line {early}, `{LINES[early]}`, uses `{name}` before line H has made it."
            raise Mistake("used-too-early", message, hint)
    if order[-1] in "EH":
        hint = "Everything that is to happen for each batch comes after the line that ends in a colon."
        raise Mistake("empty-block", f"nothing comes after line {order[-1]}, `{LINES[order[-1]]}`.", hint)
    source, depth = ["def train(model, batches, loss_fn, optimizer, scaler, n, max_norm, clip_grad_norm_):"], 1
    for letter in order:
        source.append("    " * depth + LINES[letter])
        depth += letter in "EH"
    return function("\n".join(source), {}, "your order")


def watch_order(answer: str | Sequence[str], case: AmpCase) -> Seen:
    """Runs the loop that an order makes."""
    order = letters(answer)
    train, loop, scaler = assemble(order), Loop(case), scaler_for(case)
    tools = loop.optimizer, scaler, case.n, case.max_norm, nn.utils.clip_grad_norm_
    try:
        seen = loop.run(lambda batches: train(loop.model, batches, loop.loss_fn, *tools))
    except (RuntimeError, AssertionError) as error:  # by the scaler, which counts its calls
        raise Mistake("scaler-timing", f"the scaler says: {error}.", SCALER) from None
    return seen | {"every line is needed": len(order) <= len(ORDER)}


SCALER = "Each window needs one `unscale_` and one `update`, both after its last backward pass."


@exercise(takes=str | list | tuple)
def order_amp(answer):
    idle = ("idle-line", "leave out what does nothing", "Cover each line in turn. Does anything change without it?")
    hints = {
        "stale-gradients": "A line may be used twice. What is in `.grad` before the first window, and what is there "
        "after a step, or after a step that the scaler has left out?",
        "unguarded-step": "Two of the lines make a step. Which of them looks for an infinity first?",
    }
    compare(watch_order, answer, ORDER, ORDER_CASES, {"every line is needed": idle}, hints)
    return (
        "the loop ran with N = 1 and 4, with old gradients, a gradient to clip and one that overflows: every update is "
        "that of its own window, unscaled once and clipped once."
    )
