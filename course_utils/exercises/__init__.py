"""The exercises, in modules by notebook: a function an exercise; and `check`, which runs one."""

import re
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from reprlib import repr
from typing import Any

import torch

from course_utils import my_loop
from course_utils.ask import tried
from course_utils.ask.display import ASK, RIGHT, WRONG, show_loop, show_verdict
from course_utils.exercises.deadline import Endless, place, run, uncalled
from course_utils.exercises.judging import EXERCISES, Exercise, Mistake, Verdict

NOT_TRIED = {"not-attempted", "interrupted"}  # these say nothing about the answer
MOST = 100_000  # characters of what an answer prints


def check(exercise: str, answer: Any, scored: bool = True, limit: float = 20.0) -> Verdict:
    """Says whether an answer to an exercise is right, or which bug it has and how that shows.

    No exception of the answer's leaves it, whatever the answer does. Nor does an interrupt from the
    keyboard: it stops the answer, the verdict says so, and the cells that wait after this one run.
    An answer that catches the interrupt is stopped when its time is over.

    Args:
        exercise: The name of the exercise.
        answer: The learner's function, or what the exercise takes instead of one.
        scored: Whether it counts for the progress line, as the notebook's own solution does not.
        limit: Seconds after which the answer is stopped.

    Returns:
        The `Verdict`, with `passed`, `bug`, `message` and `hint`. The hint is in a fold.

    Raises:
        ValueError: If no exercise has this name.

    Example:
        check("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h))  # Right. 2 parabolas, ...
    """
    verdict = judge(exercise, answer, limit)
    if scored:
        tried(exercise, None if verdict.bug in NOT_TRIED else verdict.passed)
        if verdict.passed and EXERCISES[exercise].stage and not my_loop.is_off():
            verdict = replace(verdict, message=f"{verdict.message} {_kept(exercise, answer)}")
    _show(exercise, verdict, scored)
    return verdict


def _kept(exercise: str, answer: Callable) -> str:
    """Keeps a right answer, and says so, or why not."""
    try:
        loop = my_loop.Loop(EXERCISES[exercise].stage, my_loop.standalone(answer), [])
        if not (alone := judge(exercise, my_loop.train_of(loop))).passed:
            return f"It isn't kept, because in a file of its own it fails: {alone.message}"
        my_loop.keep(answer, loop.after)
    except my_loop.NotAlone as needs:
        return f"It isn't kept in `{my_loop.FILE}`, because it uses {needs}."
    except (OSError, TypeError, ValueError) as error:
        return f"It isn't kept: {error}."
    return f"It is kept in `{my_loop.FILE}`, beside this notebook."


def loop_so_far(after: str) -> Callable:
    """The training loop as a notebook has left it: yours, if you have written it, else the course's.

    Shows its text, with the lines marked that the notebook has added. Yours is read from `my_loop.py`, which lies
    beside the notebook since `check` passed your loop. If what the file holds isn't right any more, that is said, and
    the course's loop is used.

    Args:
        after: The number of the notebook, as "04".

    Returns:
        The function `train`.

    Raises:
        ValueError: If the loop doesn't grow in this notebook.

    Example:
        train = loop_so_far("04")  # shows it, and lets the next cells train with it
    """
    if after not in my_loop.STAGES:
        raise ValueError(f"after must be one of {', '.join(my_loop.STAGES)}, got {after!r}")
    loop, says = my_loop.of_the_course(after), ""
    try:
        if (own := my_loop.of_the_learner()) and own.after == after:
            exercise = next(name for name, each in EXERCISES.items() if each.stage == after)
            verdict = judge(exercise, my_loop.train_of(own))
            loop, says = (own, "") if verdict.passed else (loop, f"isn't right any more ({verdict.message})")
        elif own:
            says = f"holds your loop after {own.after}"
    except SyntaxError as error:
        says = f"can't be read (line {error.lineno}: {error.msg})"
    except Exception as error:  # whatever somebody has written into the file
        where = f"{line}: " if (line := place(error.__traceback__)) else ""
        says = f"can't be used ({where}{type(error).__name__}: {error})"
    mine = "your loop" if not says and own else "the course's loop"
    show_loop(f"{mine} after {after}" + f", because {my_loop.FILE} {says}" * bool(says), loop.text, loop.new)
    return my_loop.train_of(loop)


def _show(exercise: str, verdict: Verdict, scored: bool) -> None:
    is_code = re.match(r"[\w.]+ = ", verdict.message)  # "w.grad = 2.0: ...": no sentence begins here
    message = verdict.message if is_code else verdict.message[:1].upper() + verdict.message[1:]
    if verdict.passed:
        color, text = (RIGHT, EXERCISES[exercise].praise) if scored else (ASK, "The solution passes.")
        text = f"{text} {message}"
    elif verdict.bug == "not-attempted":
        color, text = ASK, f"Not done yet. {message}"
    elif verdict.bug in NOT_TRIED:
        color, text = ASK, message
    else:
        color, text = WRONG, f"Not yet right ({verdict.bug}). {message}"
    kind = {"kind": "verdict", "exercise": exercise, "passed": verdict.passed, "bug": verdict.bug, "message": message}
    kind |= {"hint": verdict.hint} if verdict.hint else {}
    show_verdict(color, text, verdict.hint, verdict.printed, kind)


def judge(name: str, answer: Any, limit: float = 20.0) -> Verdict:
    """Judges an answer to an exercise. Whatever the answer raises becomes part of the verdict.

    Args:
        name: The name of the exercise.
        answer: The learner's function, or what the exercise takes instead of one.
        limit: Seconds after which the answer is stopped; the bug is then called `endless`.

    Returns:
        The verdict, with a hint if the answer is not right, and with what the answer printed.

    Raises:
        ValueError: If no exercise has this name.

    Example:
        >>> judge("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h)).passed
        True
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    found = EXERCISES[name]
    if isinstance(answer, found.takes):
        return _judged(found, answer, limit + found.extra)
    got = f"got {repr(answer)} ({type(answer).__name__})."
    if found.takes is Callable:
        hint = f'Pass the function itself, without parentheses: `check("{name}", {name})`.'
        return Verdict("not-a-function", f"expected a function, {got}", hint)
    kind = getattr(found.takes, "__name__", found.takes)
    return Verdict("wrong-type", f"expected a {kind}, {got}", "Read in the task what form the answer takes.")


def _judged(found: Exercise, answer: Any, limit: float) -> Verdict:
    printed, dtype, device = StringIO(), torch.get_default_dtype(), torch.get_default_device()
    with (
        torch.random.fork_rng(devices=()),
        torch.enable_grad(),
        warnings.catch_warnings(),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("default")
        torch.set_default_dtype(torch.float64)  # as the notebooks' set-up does; in bfloat16 no tolerance would hold
        try:
            verdict = Verdict("", run(lambda: found.judge(answer), limit))
        except BaseException as error:
            verdict = _verdict(error, answer, limit)
    torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(device)
    return replace(verdict, printed=printed.getvalue()[:MOST])


def _verdict(error: BaseException, answer: Any, limit: float) -> Verdict:
    if isinstance(error, Mistake):
        if line := uncalled(answer):
            hint = "A call ends with its parentheses, `()`."
            says = f"{line}: no parentheses stand after it, so nothing is called; {error}"
            return Verdict("not-called", says, hint)
        return error.verdict
    where = place(error.__traceback__)
    inside = f", in {where}" if where else ""
    if isinstance(error, KeyboardInterrupt):
        return Verdict("interrupted", f"stopped by you{inside}.", "Run the cell again when you are ready.")
    if isinstance(error, Endless):
        after = f"it was still running after {limit:g} second{'s' * (limit != 1)}"
        hint = "Which line should end the loop, and which value has to change before it can?"
        return Verdict("endless", f"stopped: {after}{inside}.", hint)
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    if type(error) is NameError:
        said += ". If a cell above defines it, run that cell first"
    hint = (
        "Is every name in that line spelled as in the cells above? If so, print the values that the line uses: what "
        "type are they, and what do they hold?"
    )
    return Verdict("raises", f"{where or 'calling your function, or reading its result'}: {said}", hint)


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    import_module(f"{__name__}.{_path.stem}")
