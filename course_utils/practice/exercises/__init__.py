"""The exercises' judges: each runs a learner's function, compares it with the right one and names the bug it shows.

Every judge takes one function and gives a `Verdict`. A wrong answer never raises here: what it does wrong is the
answer. Training loops are judged on a `Tally`, whose `.grad` says how much every item counts in each update, and then
on a real model, every parameter.
"""

from collections.abc import Callable
from reprlib import repr

import torch

from course_utils.practice.deadline import Deadline, Endless, place
from course_utils.practice.exercises import (
    accumulation,
    capstone,
    distributed,
    exactness,
    gradients,
    hooks,
    noise,
    pitfalls,
    precision,
    tokens,
    training,
    zeroing,
)
from course_utils.practice.exercises.verdict import Mistake, Verdict

JUDGES: dict[str, Callable[[Callable], str]] = {
    **gradients.JUDGES,
    **zeroing.JUDGES,
    **accumulation.JUDGES,
    **exactness.JUDGES,
    **tokens.JUDGES,
    **hooks.JUDGES,
    **precision.JUDGES,
    **training.JUDGES,
    **noise.JUDGES,
    **distributed.JUDGES,
    **pitfalls.JUDGES,
    **capstone.JUDGES,
}


def judge(name: str, answer: Callable, limit: float = 20.0) -> Verdict:
    """Judges `answer` as the solution of the exercise `name`; after `limit` seconds it is stopped, and the bug is
    called `endless`.

    **Raises:** `ValueError` for a name that no exercise has. Never because of the answer.

    >>> judge("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h)).passed
    True
    """
    if name not in JUDGES:
        raise ValueError(f"no exercise is called {name!r}, only {', '.join(JUDGES)}")
    if not callable(answer):
        return Verdict("not-a-function", f"expected a function, got {repr(answer)} ({type(answer).__name__}).")
    with torch.random.fork_rng(devices=()), torch.enable_grad():
        torch.default_generator.manual_seed(1)
        try:
            with Deadline(limit):
                return Verdict("", JUDGES[name](answer))
        except Endless as stopped:
            where = place(stopped.__traceback__)
            return Verdict(
                "endless",
                f"stopped: it was still running after {limit:g} seconds" + (f", in {where}." if where else "."),
            )
        except Mistake as found:
            return found.verdict
        except (Exception, SystemExit) as error:
            return Verdict("raises", f"your function raised {type(error).__name__}: {error}")
